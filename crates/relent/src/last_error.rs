//! The bound of an error type for `?`, with advice where it is not met.

use std::error::Error;

/// An error type with which a [`GaveUp`](crate::GaveUp) is an [`Error`]: every type that is an
/// [`Error`] itself. There is nothing to implement.
///
/// `anyhow::Error` and `Box<dyn Error>` are not, so the compiler error names the line to write for
/// them:
///
/// ```compile_fail,E0277
/// # use relent::{Policy, retry};
/// # async fn fetch() -> anyhow::Result<u32> { Ok(1) }
/// async fn order() -> anyhow::Result<u32> {
///     Ok(retry(Policy::STANDARD, fetch).await?) // write `.or_last_error().await?`
/// }
/// ```
///
/// The same holds for `context` of anyhow:
///
/// ```compile_fail,E0599
/// # use relent::{Policy, retry};
/// # use anyhow::Context;
/// # async fn fetch() -> anyhow::Result<u32> { Ok(1) }
/// async fn order() -> anyhow::Result<u32> {
///     retry(Policy::STANDARD, fetch).await.context("order") // write `.or_last_error().await.context("order")`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`?` cannot convert `GaveUp<{Self}>`, since `{Self}` is no `std::error::Error`",
    label = "write `.or_last_error().await?` to return the last `{Self}` itself",
    note = "an async call: `retry(..).or_last_error().await?`; a call with `run()`: `.map_err(GaveUp::into_last)?`",
    note = "to keep reason and number of attempts: `.map_err(GaveUp::into_dyn)?`",
    note = "if `{Self}` is your own type, `impl std::error::Error for {Self}` does it, too"
)]
pub trait LastError: Error + 'static {}

#[diagnostic::do_not_recommend]
impl<E: Error + 'static> LastError for E {}
