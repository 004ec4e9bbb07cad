//! relent
