//! JSON values that know their path, for error messages.

use std::time::Duration;

use relent_core::GrpcCode;
use serde_json::Value;

use super::error::ServiceConfigError;
use crate::field::{SECONDS, decimal};

const DURATION: &str = "a duration in seconds such as \"0.1s\"";
const DURATION_ABOVE_ZERO: &str = "a duration in seconds above 0, such as \"0.1s\"";

pub(super) struct Node<'v> {
    path: String,
    value: &'v Value,
}

impl<'v> Node<'v> {
    pub(super) fn root(value: &'v Value) -> Self {
        Self {
            path: String::new(),
            value,
        }
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> ServiceConfigError {
        ServiceConfigError {
            path: self.path.clone(),
            problem: problem.into(),
        }
    }

    /// An error: the value is not one of those accepted here.
    pub(super) fn wrong(&self, accepted: &str) -> ServiceConfigError {
        let shown = match self.value {
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            value => value.to_string(),
        };
        self.error(format!("{shown} is out of place: use {accepted}"))
    }

    fn child(&self, key: &str) -> String {
        match &*self.path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// The value of this key. As in all protobuf JSON, `null` counts as absent.
    pub(super) fn get(&self, key: &str) -> Result<Option<Self>, ServiceConfigError> {
        let Value::Object(fields) = self.value else {
            return Err(self.wrong("an object"));
        };
        Ok(fields
            .get(key)
            .filter(|value| !value.is_null())
            .map(|value| Self {
                path: self.child(key),
                value,
            }))
    }

    pub(super) fn required(&self, key: &str) -> Result<Self, ServiceConfigError> {
        self.get(key)?.ok_or_else(|| ServiceConfigError {
            path: self.child(key),
            problem: "this key is required".to_owned(),
        })
    }

    /// Rejects all other keys.
    pub(super) fn only(&self, keys: &[&str]) -> Result<(), ServiceConfigError> {
        let Value::Object(fields) = self.value else {
            return Err(self.wrong("an object"));
        };
        match fields.keys().find(|key| !keys.contains(&key.as_str())) {
            None => Ok(()),
            Some(unknown) => Err(ServiceConfigError {
                path: self.child(unknown),
                problem: format!("there is no such key: use {}", keys.join(", ")),
            }),
        }
    }

    pub(super) fn elements(&self) -> Result<Vec<Self>, ServiceConfigError> {
        let Value::Array(elements) = self.value else {
            return Err(self.wrong("a list"));
        };
        let elements = elements.iter().enumerate().map(|(index, value)| Self {
            path: format!("{}[{index}]", self.path),
            value,
        });
        Ok(elements.collect())
    }

    pub(super) fn text(&self) -> Result<&'v str, ServiceConfigError> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    pub(super) fn number_above_zero(&self, accepted: &str) -> Result<f64, ServiceConfigError> {
        self.value
            .as_f64()
            .filter(|number| *number > 0.0)
            .ok_or_else(|| self.wrong(accepted))
    }

    /// Parses `google.protobuf.Duration`, and also `.1s`, which the text of gRFC A6 uses.
    pub(super) fn duration(&self) -> Result<Duration, ServiceConfigError> {
        self.seconds(DURATION)
    }

    pub(super) fn duration_above_zero(&self) -> Result<Duration, ServiceConfigError> {
        match self.seconds(DURATION_ABOVE_ZERO)? {
            Duration::ZERO => Err(self.wrong(DURATION_ABOVE_ZERO)),
            duration => Ok(duration),
        }
    }

    fn seconds(&self, accepted: &str) -> Result<Duration, ServiceConfigError> {
        let seconds = self.value.as_str().and_then(|text| text.strip_suffix('s'));
        let seconds = seconds.map(|text| match text.as_bytes() {
            [b'.', ..] => decimal(format!("0{text}").as_bytes(), SECONDS),
            text => decimal(text, SECONDS),
        });
        match seconds {
            Some(Ok(duration)) => Ok(duration),
            _ => Err(self.wrong(accepted)),
        }
    }

    /// A status code other than OK, by name or number.
    pub(super) fn code(&self) -> Result<GrpcCode, ServiceConfigError> {
        let code = match self.value {
            Value::String(name) => name.parse().ok(),
            Value::Number(number) => number
                .as_u64()
                .and_then(|number| u16::try_from(number).ok())
                .and_then(GrpcCode::from_number),
            _ => None,
        };
        code.filter(|code| *code != GrpcCode::Ok).ok_or_else(|| {
            let names = GrpcCode::ALL[1..].iter().map(|code| code.name());
            let names = names.collect::<Vec<_>>().join(", ").to_uppercase();
            self.wrong(&format!("a number from 1 to 16 or one of {names}"))
        })
    }
}
