//! Values of a scenario that are written as words: durations and the like.

use relent_core::parse_duration;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

pub(super) const fn five_minutes() -> u64 {
    300 * SECOND
}

/// Reads a duration such as "500ms".
pub(crate) fn nanos<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(D::Error::custom)
}

/// Reads a duration that may be absent.
pub(crate) fn some_nanos<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    nanos(from).map(Some)
}

pub(super) fn parse(text: &str) -> Result<u64, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    Ok(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Sets the key at a path such as `service.failures`; missing tables are created.
pub(super) fn change(table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
    set(table, key, read(value))
}

/// Sets the key at a path to a value that has been parsed.
pub(super) fn set(table: &mut toml::Table, key: &str, value: toml::Value) -> Result<(), String> {
    let Some((first, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return Ok(());
    };
    let inner = table
        .entry(first)
        .or_insert_with(|| toml::Value::Table(toml::Table::new()));
    match inner {
        toml::Value::Table(inner) => set(inner, rest, value),
        // `model = "queue"` is replaced by `model.job.…`.
        toml::Value::String(_) => {
            let mut fresh = toml::Table::new();
            set(&mut fresh, rest, value)?;
            *inner = toml::Value::Table(fresh);
            Ok(())
        }
        toml::Value::Array(list) => {
            let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
            let count = list.len();
            let entry = number
                .parse()
                .ok()
                .and_then(|index: usize| list.get_mut(index));
            match entry {
                Some(toml::Value::Table(inner)) if !rest.is_empty() => set(inner, rest, value),
                _ => Err(format!(
                    "`{first}` is a list of {count}: write {first}.0.KEY for the first"
                )),
            }
        }
        _ => Err(format!("`{first}` has no keys in it")),
    }
}

/// A value in TOML, or else a plain word.
fn read(value: &str) -> toml::Value {
    let parsed: Option<toml::Table> = toml::from_str(&format!("value = {value}")).ok();
    parsed
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.to_owned()))
}
