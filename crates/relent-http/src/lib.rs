//! relent-http
