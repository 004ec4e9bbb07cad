//! A table of the file form.

use alloc::string::String;

use serde::{Deserialize, Deserializer};

/// Declares a table in which every key is optional. A present key must have a value: JSON's `null`
/// is an error, not absence.
macro_rules! table {
    ($name:ident { $($key:ident: $type:ty),* $(,)? }) => {
        #[derive(Serialize, Deserialize, Default)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $(
                #[serde(
                    default,
                    deserialize_with = "present",
                    skip_serializing_if = "Option::is_none"
                )]
                $key: Option<$type>,
            )*
        }
    };
}
pub(super) use table;

pub(super) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// `Some` if it differs from the default.
pub(super) fn non_default<T: PartialEq>(value: T, default: &T) -> Option<T> {
    (value != *default).then_some(value)
}

pub(super) fn missing<T>(value: Option<T>, what: &str) -> Result<T, String> {
    value.ok_or_else(|| alloc::format!("missing key {what}"))
}
