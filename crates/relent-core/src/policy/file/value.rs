//! The value types of the file form.

use alloc::string::{String, ToString};
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::duration::{format_duration, parse_duration};
use crate::hint::HintMode;
use crate::policy::ceiling::Ceiling;
use crate::policy::jitter::Jitter;
use crate::policy::pattern::Pattern;

/// Implements a value that is written as text. Numbers are accepted as their text, so that a
/// duration without a unit gets a helpful error.
macro_rules! text {
    ($name:ident($inner:ty), $expected:literal, $read:expr, $write:expr) => {
        pub(super) struct $name(pub(super) $inner);

        impl TextValue for $name {
            const EXPECTED: &'static str = $expected;

            fn read(text: &str) -> Result<Self, String> {
                let read: fn(&str) -> Result<$inner, String> = $read;
                read(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(TextVisitor(PhantomData))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$inner) -> WrittenValue = $write;
                match write(&self.0) {
                    WrittenValue::TextValue(text) => to.serialize_str(&text),
                    WrittenValue::Number(number) => to.serialize_u32(number),
                }
            }
        }
    };
}

trait TextValue: Sized {
    const EXPECTED: &'static str;

    fn read(text: &str) -> Result<Self, String>;
}

enum WrittenValue {
    TextValue(String),
    Number(u32),
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: TextValue> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&alloc::format!("{number:?}"))
    }
}

const UNLIMITED: &str = "unlimited";

text!(
    DurationText(Duration),
    "a duration such as \"250ms\", \"1.5s\" or \"2m\"",
    read_duration,
    |duration| WrittenValue::TextValue(format_duration(*duration))
);
text!(
    Limit(Option<Duration>),
    "a duration such as \"250ms\", \"1.5s\" or \"2m\", or \"unlimited\"",
    |text| match text.trim() {
        UNLIMITED => Ok(None),
        _ => match read_duration(text) {
            Ok(duration) => Ok(Some(duration)),
            Err(error) => Err(alloc::format!("{error}, or {UNLIMITED}")),
        },
    },
    |limit| WrittenValue::TextValue(limit.map_or_else(|| UNLIMITED.to_string(), format_duration))
);
text!(
    Retries(Option<u32>),
    "a number of retries, or \"unlimited\"",
    |text| match text.trim() {
        UNLIMITED => Ok(None),
        _ => match count(text) {
            Some(retries) => Ok(Some(retries)),
            None => Err(alloc::format!(
                "invalid number of retries {text:?}: use an integer from 0 to {}, or {UNLIMITED}",
                u32::MAX
            )),
        },
    },
    |retries| retries.map_or_else(
        || WrittenValue::TextValue(UNLIMITED.to_string()),
        WrittenValue::Number
    )
);
text!(
    Count(u32),
    "a whole number",
    |text| count(text).ok_or_else(|| alloc::format!(
        "{text:?} is out of place: use a whole number from 0 to {}",
        u32::MAX
    )),
    |number| WrittenValue::Number(*number)
);
text!(
    JitterText(Jitter),
    "a jitter such as \"full\", \"none\", \"equal\", \"proportional:0.2\" or \"additive:1s\"",
    |text| text.parse().map_err(|error| message(&error)),
    |jitter| WrittenValue::TextValue(jitter.to_string())
);
text!(
    PatternText(Pattern),
    "a failure such as 503, \"5xx\", \"timeout\" or \"network\"",
    |text| text.parse().map_err(|error| message(&error)),
    |pattern| match *pattern {
        Pattern::Status(low, high) if low == high => WrittenValue::Number(u32::from(low)),
        _ => WrittenValue::TextValue(pattern.to_string()),
    }
);

fn read_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| message(&error))
}

/// Unlike `u32::from_str`, rejects "+5".
fn count(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

fn message(error: &dyn fmt::Display) -> String {
    error.to_string()
}

/// Implements a value that is one of several words.
macro_rules! words {
    ($name:ident($inner:ty), $expected:literal, $($word:literal => $value:path,)*) => {
        pub(super) struct $name(pub(super) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Words;
                impl Visitor<'_> for Words {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        match text {
                            $($word => Ok($name($value)),)*
                            _ => Err(E::unknown_variant(text, &[$($word),*])),
                        }
                    }
                }
                from.deserialize_any(Words)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(match self.0 {
                    $($value => $word,)*
                })
            }
        }
    };
}

words!(
    CeilingWord(Ceiling), "\"before_jitter\" or \"after_jitter\"",
    "before_jitter" => Ceiling::BeforeJitter,
    "after_jitter" => Ceiling::AfterJitter,
);
words!(
    HintWord(HintMode), "\"floor\", \"replace\", \"clamp\", \"exact\" or \"ignore\"",
    "floor" => HintMode::Floor,
    "replace" => HintMode::Replace,
    "clamp" => HintMode::Clamp,
    "exact" => HintMode::Exact,
    "ignore" => HintMode::Ignore,
);
words!(Switch(SwitchedTo), "\"on\" or \"off\"", "on" => SwitchedTo::On, "off" => SwitchedTo::Off,);

pub(super) enum SwitchedTo {
    On,
    Off,
}
