//! relent-cli
