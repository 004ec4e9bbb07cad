//! Filter of a list of messages.

use serde::Deserialize;

use super::link::encoded;
use super::time;
use crate::store::Filter;

/// The fields of the search form. Empty fields do not narrow the list.
#[derive(Deserialize, Clone, Default)]
#[serde(default)]
pub(super) struct Listed {
    /// If an endpoint is given, an empty tenant means the endpoint without tenant.
    pub(super) tenant: String,
    pub(super) endpoint: String,
    pub(super) search: String,
    pub(super) topic: String,
    pub(super) state: String,
    pub(super) from: String,
    pub(super) until: String,
    pub(super) before: Option<i64>,
}

impl Listed {
    /// Converts it to a filter; `None` if a field is invalid.
    pub(super) fn filter(&self) -> Option<Filter> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let state = given(&self.state).map(|state| serde_json::from_value(state.into()));
        let endpoint = given(&self.endpoint);
        let filter = Filter {
            tenant: match endpoint {
                Some(_) => Some(self.tenant.clone()),
                None => given(&self.tenant),
            },
            endpoint,
            search: given(&self.search),
            topic: given(&self.topic),
            state: state.transpose().ok()?,
            enqueued_from_ms: time::read(&self.from).ok()?,
            enqueued_until_ms: time::read(&self.until).ok()?,
            before: self.before,
            ..Filter::default()
        };
        filter.check().ok()?;
        Some(filter)
    }

    /// The URL of this list, open for another parameter.
    pub(super) fn link(&self) -> String {
        let mut link = "/messages?".to_owned();
        let before = self
            .before
            .map(|place| place.to_string())
            .unwrap_or_default();
        for (key, value) in [
            ("tenant", &self.tenant),
            ("endpoint", &self.endpoint),
            ("search", &self.search),
            ("topic", &self.topic),
            ("state", &self.state),
            ("from", &self.from),
            ("until", &self.until),
            ("before", &before),
        ] {
            if !value.is_empty() {
                link += &format!("{key}={}&", encoded(value));
            }
        }
        link
    }
}
