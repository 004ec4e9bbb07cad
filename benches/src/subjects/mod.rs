//! The subjects: the operation alone, Relent, and comparable crates, each as its documentation shows.

use crate::Row;

pub mod admission;
pub mod backoff;
pub mod backon;
pub mod bare;
pub mod governor;
pub mod http;
pub mod relent;
pub mod reqwest;
pub mod retry_policies;
pub mod tokio_retry;
pub mod tokio_retry2;
pub mod tower;

/// Every subject's rows.
pub const ROWS: [&[Row]; 12] = [
    bare::ROWS,
    relent::ROWS,
    backon::ROWS,
    backoff::ROWS,
    tokio_retry::ROWS,
    tokio_retry2::ROWS,
    tower::ROWS,
    retry_policies::ROWS,
    governor::ROWS,
    http::ROWS,
    reqwest::ROWS,
    admission::ROWS,
];

/// Creates a future and returns its size in bytes.
pub type Size = fn() -> usize;

/// The futures that wrap an operation of 16 bytes.
pub const FUTURES: [(&str, Size); 8] = [
    ("bare", bare::future_size),
    ("relent", relent::future_size),
    ("backon", backon::future_size),
    ("backoff", backoff::future_size),
    ("tokio-retry", tokio_retry::future_size),
    ("tokio-retry2", tokio_retry2::future_size),
    ("tower (waits by nothing)", tower::future_size),
    (
        "tower (waits by tokio's Sleep)",
        tower::future_size_with_sleep,
    ),
];
