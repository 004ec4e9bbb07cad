//! Conformance tests for implementations of [`Store`].

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a store that is wrong fails the test that checks it"
)]

mod lists;
mod model;
mod operators;
mod orders;
mod producers;
mod shop;
mod workers;

use super::Store;

pub use model::play;

/// Checks each guarantee of [`Store`] on an empty store, which `make` creates. Needs a tokio runtime; one with several
/// threads tests more concurrency.
///
/// # Panics
/// If the store fails or violates a guarantee.
///
/// ```no_run
/// use relent_outbox::store::{Sqlite, conformance};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let directory = tempfile::tempdir().unwrap();
/// let files = std::cell::Cell::new(0);
/// conformance::check(async || {
///     files.set(files.get() + 1);
///     Sqlite::open(directory.path().join(format!("{}.db", files.get()))).unwrap()
/// })
/// .await;
/// # }
/// ```
pub async fn check<S: Store>(make: impl AsyncFn() -> S) {
    producers::check(&make).await;
    workers::check(&make).await;
    orders::check(&make).await;
    operators::check(&make).await;
    lists::check(&make).await;
}
