//! Messages that wait because their endpoint is disabled.

use serde_json::Value;

use super::list::full_name;
use super::server::{Server, encoded, text, wait_text};
use crate::console::say;
use crate::exit_status::ExitError;

/// Lists all endpoints.
pub(super) async fn all(server: &Server) -> Result<Vec<Value>, ExitError> {
    let mut endpoints: Vec<Value> = Vec::new();
    let mut next = Some("/v1/endpoints?limit=1000".to_owned());
    while let Some(path) = next {
        let mut page = server.get(&path).await?;
        if let Some(found) = page["endpoints"].as_array_mut() {
            endpoints.append(found);
        }
        next = page["next"].as_str().map(str::to_owned);
    }
    Ok(endpoints)
}

/// The advice about a disabled endpoint.
fn enabled_by(name: &str) -> String {
    format!("`relent deliver endpoints enable {name}` releases them")
}

/// Reports that an endpoint is disabled, with the reason, if it is.
pub(super) fn say_if_disabled(status: &Value) {
    if status["activity"] == "disabled" {
        let name = full_name(&status["endpoint"], "name");
        say(&format!(
            "{name} is disabled, so its messages wait: {}; {}",
            text(status, "reason"),
            enabled_by(&name)
        ));
    }
}

/// Reports the selected endpoints that are disabled and have pending messages. Says nothing if the server does not
/// respond: the command itself has succeeded.
pub(super) async fn say_disabled(server: &Server, is_selected: impl Fn(&Value) -> bool) {
    if has_none_disabled(server).await {
        return;
    }
    let Ok(endpoints) = all(server).await else {
        return;
    };
    let selected = endpoints.iter().filter(|status| is_selected(status));
    selected
        .filter(|status| status["pending"] != 0)
        .for_each(say_if_disabled);
}

/// Whether the server says that no endpoint is disabled, or does not respond.
pub(super) async fn has_none_disabled(server: &Server) -> bool {
    let summary = server.get("/v1/summary").await;
    summary.map_or(true, |summary| summary["disabled"] == 0)
}

/// Describes why a message waits if its endpoint is disabled. `None` also if the server does not respond.
pub(super) async fn disabled(server: &Server, id: &str) -> Option<String> {
    let path = format!("/v1/messages/{}", encoded(id));
    let shown = server.get(&path).await.ok()?;
    let message = &shown["message"];
    let is_disabled = message["wait"]["reason"] == "endpoint-disabled";
    let advice = enabled_by(&full_name(message, "endpoint"));
    let wait = wait_text(message).filter(|_| is_disabled)?;
    Some(format!("{wait}; {advice}"))
}
