//! A table of the written form.

use alloc::string::String;

use serde::{Deserialize, Deserializer};

/// A table whose keys may all be absent. A key that is present has a value: the `null` of JSON is
/// refused instead of being taken for absence.
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

/// `Some` if it is not the default.
pub(super) fn unless<T: PartialEq>(value: T, default: &T) -> Option<T> {
    (value != *default).then_some(value)
}

pub(super) fn missing<T>(value: Option<T>, what: &str) -> Result<T, String> {
    value.ok_or_else(|| alloc::format!("missing key {what}"))
}
