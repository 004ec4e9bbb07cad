//! JSON objects that name each key once.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A JSON object in which no key occurs twice, at any depth: [`Map`] would silently take the last one.
pub(super) struct Object(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Unique::deserialize(deserializer)?.0 {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(D::Error::custom("the body has to be an object")),
        }
    }
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        while let Some(Unique(element)) = elements.next_element()? {
            read.push(element);
        }
        Ok(Value::Array(read))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some((key, Unique(value))) = fields.next_entry::<String, Unique>()? {
            if read.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{key} occurs twice")));
            }
            read.insert(key, value);
        }
        Ok(Value::Object(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_a_key_twice_is_refused() {
        let whole = r#"{"a":null,"b":[true,-1,1,1.5,"x",{"a":1}],"c":{}}"#;
        let Object(read) = serde_json::from_str(whole).unwrap();
        assert_eq!(Value::Object(read).to_string(), whole);
        for (text, wrong) in [
            (r#"{"url":"one","url":"two"}"#, "url occurs twice"),
            (r#"{"headers":{"x":"1","x":"2"}}"#, "x occurs twice"),
            (r#"[{"x":"1","x":"1"}]"#, "x occurs twice"),
            ("[]", "has to be an object"),
        ] {
            let read = serde_json::from_str::<Object>(text).map(drop);
            let error = read.unwrap_err();
            assert!(
                error.is_data() && error.to_string().contains(wrong),
                "{error}"
            );
        }
    }
}
