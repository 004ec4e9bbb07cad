//! What an error type has to be for `?` and for the last error, and what to write where it is not.

use std::error::Error;

use crate::gave_up::NoLastError;

/// An error type with which a [`GaveUp`](crate::GaveUp) is an [`Error`]: every type that is an
/// [`Error`] itself. There is nothing to implement.
///
/// `anyhow::Error` and `Box<dyn Error>` are none, so the compiler names the line to write for them:
///
/// ```compile_fail,E0277
/// # use relent::{Policy, retry};
/// # async fn fetch() -> anyhow::Result<u32> { Ok(1) }
/// async fn order() -> anyhow::Result<u32> {
///     Ok(retry(Policy::STANDARD, fetch).await?) // write `.or_last_error().await?`
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

/// An error type that has a value for a call without a last error, so that
/// [`Retry::or_last_error`](crate::Retry::or_last_error) can return it: every type that is
/// `From<`[`NoLastError`]`>`. There is nothing else to implement.
///
/// For any other type the compiler names the line to write:
///
/// ```compile_fail,E0277
/// # use relent::{Policy, retry};
/// # enum MyError { NoAnswer }
/// # async fn fetch() -> Result<u32, MyError> { Ok(1) }
/// async fn order() -> Result<u32, MyError> {
///     retry(Policy::STANDARD, fetch).or_last_error().await
///     // write `.or_last_error_else(|_| MyError::NoAnswer).await`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no value for a call that ends without an error of its operation",
    label = "name one: `.or_last_error_else(|gave_up| ..)`",
    note = "an async call: `retry(..).or_last_error_else(|gave_up| ..).await?`; a call with `run()`: \
            `.map_err(|gave_up| gave_up.into_last_or_else(|gave_up| ..))?`",
    note = "or, once for `{Self}`: `impl From<relent::error::NoLastError> for {Self}`"
)]
pub trait FromNoLastError: Sized {
    /// The value.
    #[doc(hidden)]
    fn from_no_last_error(gave_up: NoLastError) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<NoLastError>> FromNoLastError for E {
    fn from_no_last_error(gave_up: NoLastError) -> Self {
        gave_up.into()
    }
}
