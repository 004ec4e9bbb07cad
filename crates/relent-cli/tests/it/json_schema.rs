//! A validator for the part of JSON Schema that the schemas of this repository use.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

/// A schema with its definitions.
pub(crate) struct Schema {
    pub(crate) root: Value,
    /// The compiled patterns.
    patterns: RefCell<HashMap<String, Regex>>,
}

impl Schema {
    pub(crate) fn parse(text: &str) -> Self {
        Self {
            root: serde_json::from_str(text).unwrap(),
            patterns: RefCell::default(),
        }
    }

    /// Checks a value against the whole schema. An unknown keyword is a panic, so that nothing in a schema goes
    /// unchecked.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        self.check_part(&self.root, value, "")
    }

    /// The schema that a `$ref` points to.
    pub(crate) fn target(&self, reference: &Value) -> &Value {
        let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
        self.root
            .pointer(pointer)
            .unwrap_or_else(|| panic!("no {pointer}"))
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        let mut patterns = self.patterns.borrow_mut();
        let compiled = patterns
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(pattern).unwrap());
        compiled.is_match(text)
    }

    /// Checks a value at a place against a part of the schema.
    pub(crate) fn check_part(&self, part: &Value, value: &Value, at: &str) -> Result<(), String> {
        for (keyword, wanted) in part.as_object().unwrap() {
            let number = value.as_f64();
            let object = value.as_object();
            let conforms = |part: &Value| self.check_part(part, value, at).is_ok();
            let count = |count: Option<usize>| count.map(|count| count as f64);
            let at_least = |found: Option<f64>| found.is_none_or(|found| found >= float(wanted));
            let at_most = |found: Option<f64>| found.is_none_or(|found| found <= float(wanted));
            let holds = match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" | "default" => true,
                "$ref" => {
                    self.check_part(self.target(wanted), value, at)?;
                    true
                }
                "type" => match wanted {
                    Value::Array(any) => any.iter().any(|name| has_type(value, name)),
                    name => has_type(value, name),
                },
                "enum" => list(wanted).contains(value),
                "const" => wanted == value,
                "not" => !conforms(wanted),
                "anyOf" => list(wanted).iter().any(conforms),
                "oneOf" => list(wanted).iter().filter(|part| conforms(part)).count() == 1,
                "minimum" => at_least(number),
                "maximum" => at_most(number),
                "exclusiveMinimum" => number.is_none_or(|number| number > float(wanted)),
                "minLength" => at_least(count(value.as_str().map(|text| text.chars().count()))),
                "minItems" => at_least(count(value.as_array().map(Vec::len))),
                "maxItems" => at_most(count(value.as_array().map(Vec::len))),
                "minProperties" => at_least(count(object.map(serde_json::Map::len))),
                "maxProperties" => at_most(count(object.map(serde_json::Map::len))),
                "pattern" => value
                    .as_str()
                    .is_none_or(|text| self.matches(wanted.as_str().unwrap(), text)),
                "required" => object.is_none_or(|object| {
                    let present = |key: &Value| object.contains_key(key.as_str().unwrap());
                    list(wanted).iter().all(present)
                }),
                "properties" => {
                    for (key, part) in wanted.as_object().unwrap() {
                        if let Some(value) = value.get(key) {
                            self.check_part(part, value, &format!("{at}/{key}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    for (key, value) in object.into_iter().flatten() {
                        let at = format!("{at}/{key}");
                        match wanted {
                            _ if part["properties"].get(key).is_some() => {}
                            Value::Bool(false) => return Err(format!("{at}: unknown key")),
                            part => self.check_part(part, value, &at)?,
                        }
                    }
                    true
                }
                "propertyNames" => {
                    for key in object.into_iter().flatten().map(|(key, _)| key) {
                        self.check_part(wanted, &Value::from(key.as_str()), at)?;
                    }
                    true
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check_part(wanted, item, &format!("{at}/{index}"))?;
                    }
                    true
                }
                other => panic!("the schema has {other}, which this validator does not know"),
            };
            if !holds {
                return Err(format!("{at}: {value} is against {keyword}: {wanted}"));
            }
        }
        Ok(())
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    }
}
