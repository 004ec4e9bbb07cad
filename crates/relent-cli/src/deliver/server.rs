//! How subcommands ask a running server.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use relent_outbox::api::Token;
use reqwest::{Client, Method};
use serde::Serialize;
use serde_json::Value;

use crate::options::duration;
use crate::quit::Quit;

/// Where the server listens unless it is told otherwise.
pub(super) const ADDRESS: &str = "127.0.0.1:8480";
/// The file with its token.
pub(super) const TOKEN_FILE: &str = "relent-deliver.token";

/// Which server is asked.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// The server
    #[arg(
        long,
        value_name = "URL",
        env = "RELENT_DELIVER_SERVER",
        default_value = "http://127.0.0.1:8480",
        help_heading = "Server"
    )]
    server: String,

    /// The file with the token of the server, which it has written when it was first started
    #[arg(
        long,
        value_name = "FILE",
        env = "RELENT_DELIVER_TOKEN_FILE",
        default_value = TOKEN_FILE,
        help_heading = "Server"
    )]
    token_file: PathBuf,
}

/// A server, as it is asked.
pub(super) struct Server {
    client: Client,
    base: String,
    token: Token,
}

impl Connection {
    pub(super) fn open(&self) -> Result<Server, Quit> {
        let file = self.token_file.display();
        let token = std::fs::read_to_string(&self.token_file).map_err(|error| {
            Quit::usage(format!(
                "--token-file {file}: cannot be read: {error}; it is where `relent deliver serve` was started"
            ))
        })?;
        let token = token
            .parse()
            .map_err(|error| Quit::usage(format!("--token-file {file}: {error}")))?;
        let base = self.server.trim_end_matches('/').to_owned();
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Err(Quit::usage(format!(
                "--server {base}: use a URL such as http://{ADDRESS}"
            )));
        }
        // The token goes to the server alone: by no proxy, and to no place that a redirect names.
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(60))
            .build()
            .map_err(|error| Quit::failed(error.to_string()))?;
        Ok(Server {
            client,
            base,
            token,
        })
    }
}

impl Server {
    pub(super) async fn get(&self, path: &str) -> Result<Value, Quit> {
        self.ask(Method::GET, path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: Option<String>) -> Result<Value, Quit> {
        self.ask(Method::POST, path, body).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, Quit> {
        self.ask(Method::DELETE, path, None).await
    }

    pub(super) async fn put(&self, path: &str, body: &impl Serialize) -> Result<Value, Quit> {
        self.ask(Method::PUT, path, Some(json(body)?)).await
    }

    async fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value, Quit> {
        let Self {
            client,
            base,
            token,
        } = self;
        let url = format!("{base}{path}");
        let mut request = client.request(method, &url).bearer_auth(token.as_str());
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        let unreachable = |error: reqwest::Error| {
            let mut reason = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(deeper) = source {
                reason = deeper.to_string();
                source = deeper.source();
            }
            Quit::failed(format!(
                "{base} does not answer: {reason}; `relent deliver serve` starts it, --server names another"
            ))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        match value {
            Some(value) if status.is_success() => Ok(value),
            Some(problem) if problem["detail"].is_string() => {
                // The same on a command line.
                let detail = plain(problem["detail"].as_str().unwrap_or_default())
                    .replace("GET /v1/messages lists", "`relent deliver list` lists")
                    .replace(
                        "GET /v1/endpoints lists",
                        "`relent deliver endpoints list` lists",
                    )
                    .replace("by ?discard=true", "by --discard");
                Err(Quit::failed(detail))
            }
            _ => Err(Quit::failed(format!(
                "{base} answered {status}, which is no answer of `relent deliver serve`: check --server"
            ))),
        }
    }
}

pub(super) fn json(value: &impl Serialize) -> Result<String, Quit> {
    serde_json::to_string(value).map_err(|error| Quit::failed(error.to_string()))
}

/// A part of a path or a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A text that others have written, on one line of a terminal: control characters do nothing.
pub(super) fn plain(text: &str) -> String {
    let visible = |character: char| match character {
        '\n' | '\r' | '\t' => ' ',
        character if character.is_control() => '\u{fffd}',
        // What turns the direction of writing hides what a line says.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => '\u{fffd}',
        character => character,
    };
    text.chars().map(visible).collect()
}

/// A text field of an answer.
pub(super) fn text(value: &Value, key: &str) -> String {
    plain(value[key].as_str().unwrap_or_default())
}

/// A time: so long ago, or as it is written in RFC 3339.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(pub(super) i64);

pub(super) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(ago) = duration(text) {
        let at = Timestamp::now()
            .checked_sub(ago)
            .map_err(|_| format!("{text} ago is too long"))?;
        return Ok(Moment(at.as_millisecond()));
    }
    text.parse()
        .map(|at: Timestamp| Moment(at.as_millisecond()))
        .map_err(|_| {
            "use a duration, such as 2h for two hours ago, or a time such as 2026-01-31T12:00:00Z"
                .to_owned()
        })
}

/// How long ago or in how long, from milliseconds since 1970.
pub(super) fn distance(ms: i64) -> String {
    let from_now = ms.saturating_sub(Timestamp::now().as_millisecond());
    let long = crate::human::human(Duration::from_millis(from_now.unsigned_abs()));
    match from_now {
        ..=0 => format!("{long} ago"),
        _ => format!("in {long}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_receiver_writes_does_nothing_to_a_terminal() {
        assert_eq!(
            plain("a\nb\u{1b}[31mc\u{9b}d\u{202e}e"),
            "a b\u{fffd}[31mc\u{fffd}d\u{fffd}e"
        );
    }

    #[test]
    fn a_moment_is_a_time_or_so_long_ago() {
        assert_eq!(moment("1970-01-01T00:00:01Z").unwrap().0, 1000);
        let hour = Timestamp::now().as_millisecond() - moment("1h").unwrap().0;
        assert!((3_600_000..3_660_000).contains(&hour), "{hour}");
        for wrong in ["", "yesterday", "2026-01-31", "-1h"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
