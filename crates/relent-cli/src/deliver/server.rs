//! The client of a running server, for the other subcommands.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use relent::failure::{Cause, Network};
use relent::{Backoff, Policy, retry};
use relent_outbox::api::Token;
use relent_outbox::text::escape_bidi;
use relent_reqwest::dns::Resolver;
use relent_reqwest::network::classify;
use reqwest::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Serialize;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::console::say;
use crate::exit_status::ExitError;
use crate::fetch::network_errors::{host_and_port, root, without_number};
use crate::human::human;
use crate::options::duration;

/// The default address of the server.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:8480";
/// The file with its token.
pub(super) const DEFAULT_TOKEN_FILE: &str = "relent-deliver.token";
/// The time limit for a request to the server with its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest delay between two attempts to reach a server that is starting.
const MAX_CONNECT_DELAY: Duration = Duration::from_millis(250);
/// A wait for the server that lasts longer than this is announced.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

/// The options for the connection to a server.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// The URL of the server
    #[arg(
        long,
        value_name = "URL",
        env = "RELENT_DELIVER_SERVER",
        default_value = "http://127.0.0.1:8480",
        help_heading = "Server"
    )]
    server: String,

    /// The file with the token of the server, which the server wrote at its first start
    #[arg(
        long,
        value_name = "FILE",
        env = "RELENT_DELIVER_TOKEN_FILE",
        default_value = DEFAULT_TOKEN_FILE,
        help_heading = "Server"
    )]
    token_file: PathBuf,

    /// The longest wait for a server that is starting: it refuses connections, or responds with 503
    ///
    /// With it, a command directly after `relent deliver serve &` works. 0s does not wait.
    #[arg(
        long,
        value_name = "D",
        default_value = "10s",
        value_parser = duration,
        help_heading = "Server"
    )]
    wait_for_server: Duration,
}

/// A client of the server's API.
pub(super) struct Server {
    client: Client,
    base: String,
    token_file: PathBuf,
    /// The token from a pipe, which can be read only once.
    piped_token: OnceCell<Token>,
    retry_policy: Policy,
    wait: Duration,
    /// A request has waited in vain for the server: later ones do not wait.
    waited_in_vain: Cell<bool>,
}

/// The result of a request.
struct Answer {
    value: Value,
    /// The `ETag`; empty if there is none.
    tag: String,
}

/// The version of a resource that a change applies to.
pub(super) enum Version {
    /// The one with this `ETag`.
    Tag(String),
    /// The resource does not exist yet.
    New,
}

impl Version {
    fn field(&self) -> (HeaderName, String) {
        match self {
            Self::Tag(tag) => (IF_MATCH, tag.clone()),
            Self::New => (IF_NONE_MATCH, "*".to_owned()),
        }
    }
}

/// The error of a request without a result.
struct RequestFailure {
    error: ExitError,
    /// The API says that the resource does not exist.
    is_missing: bool,
    /// The request may have been carried out.
    is_unknown: bool,
    /// The server may be starting: another attempt within [`Connection::wait_for_server`] can succeed.
    is_starting: bool,
}

impl RequestFailure {
    /// The error, which tells how to repeat the command if it is unknown whether the request took effect.
    fn or_repeat(mut self, again: &str) -> ExitError {
        if self.is_unknown {
            self.error.message = format!("{}; {again}", self.error.message);
        }
        self.error
    }

    fn finally(error: ExitError) -> Self {
        Self {
            error,
            is_missing: false,
            is_unknown: false,
            is_starting: false,
        }
    }
}

impl Connection {
    pub(super) fn open(&self) -> Result<Server, ExitError> {
        let base = self.server.trim_end_matches('/').to_owned();
        let accepted = Url::parse(&base).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
        });
        if !accepted {
            return Err(ExitError::usage(format!(
                "--server {base}: use a URL such as http://{DEFAULT_ADDRESS}"
            )));
        }
        // The token must reach only the server: no proxy, and no target of a redirect.
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Arc::new(Resolver))
            .timeout(REQUEST_TIMEOUT)
            .build()
            .map_err(|error| ExitError::failed(error.to_string()))?;
        let retry_policy = Policy::builder(Backoff::exponential(Duration::from_millis(20)))
            .max_delay(MAX_CONNECT_DELAY)
            .final_attempt_before_deadline(true);
        let retry_policy = match self.wait_for_server {
            Duration::ZERO => retry_policy.max_retries(0),
            wait => retry_policy.unlimited_retries().max_elapsed(wait),
        };
        let retry_policy = retry_policy
            .build()
            .map_err(|error| ExitError::usage(format!("--wait-for-server: {error}")))?;
        Ok(Server {
            client,
            base,
            token_file: self.token_file.clone(),
            piped_token: OnceCell::new(),
            retry_policy,
            wait: self.wait_for_server,
            waited_in_vain: Cell::new(false),
        })
    }
}

impl Server {
    pub(super) async fn get(&self, path: &str) -> Result<Value, ExitError> {
        self.value(Method::GET, path, None, None).await
    }

    /// Returns a resource with its version; `None` if it does not exist.
    pub(super) async fn get_version(
        &self,
        path: &str,
    ) -> Result<Option<(Value, Version)>, ExitError> {
        match self.send_with_retry(Method::GET, path, None, None).await {
            Ok(Answer { value, tag }) => Ok(Some((value, Version::Tag(tag)))),
            Err(failure) if failure.is_missing => Ok(None),
            Err(failure) => Err(failure.error),
        }
    }

    pub(super) async fn post(&self, path: &str, body: Option<String>) -> Result<Value, ExitError> {
        self.value(Method::POST, path, body, None).await
    }

    /// Deletes a resource, only in this version if one is given.
    pub(super) async fn delete(
        &self,
        path: &str,
        version: Option<&Version>,
    ) -> Result<Value, ExitError> {
        self.value(Method::DELETE, path, None, version).await
    }

    /// Deletes a resource that was there before; `None` if it is there no more, such as after a lost response. `again`
    /// tells how to repeat the command if it is unknown whether the resource was deleted.
    pub(super) async fn delete_known(
        &self,
        path: &str,
        again: &str,
    ) -> Result<Option<Value>, ExitError> {
        let sent = self.send_with_retry(Method::DELETE, path, None, None).await;
        match sent {
            Ok(answer) => Ok(Some(answer.value)),
            Err(failure) if failure.is_missing => Ok(None),
            Err(failure) => Err(failure.or_repeat(again)),
        }
    }

    /// Sends a request. `again` tells how to repeat the command if it is unknown whether the request took effect.
    pub(super) async fn post_known(
        &self,
        path: &str,
        body: String,
        again: Option<&str>,
    ) -> Result<Value, ExitError> {
        let sent = self.send_with_retry(Method::POST, path, Some(body), None);
        sent.await
            .map(|answer| answer.value)
            .map_err(|failure| match again {
                Some(again) => failure.or_repeat(again),
                None => failure.error,
            })
    }

    /// Creates or replaces a resource, only in this version.
    pub(super) async fn put(
        &self,
        path: &str,
        version: &Version,
        body: &impl Serialize,
    ) -> Result<Value, ExitError> {
        self.value(Method::PUT, path, Some(json(body)?), Some(version))
            .await
    }

    async fn value(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        version: Option<&Version>,
    ) -> Result<Value, ExitError> {
        let sent = self.send_with_retry(method, path, body, version).await;
        sent.map(|answer| answer.value)
            .map_err(|failure| failure.error)
    }

    /// Sends a request, and retries while the server may be starting. Every request of the API may be repeated: one with
    /// a version that has taken effect then gets 412, and a resend, send-now or test may make another attempt.
    async fn send_with_retry(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        version: Option<&Version>,
    ) -> Result<Answer, RequestFailure> {
        let begun = Instant::now();
        let mut is_announced = self.wait <= ANNOUNCED_AFTER;
        // One attempt that may have taken effect is enough, whatever ends the others.
        let is_unknown = Cell::new(false);
        let asked = retry(&self.retry_policy, async || {
            let sent = self.once(method.clone(), path, body.clone(), version).await;
            sent.inspect_err(|failure| is_unknown.set(is_unknown.get() || failure.is_unknown))
        })
        .when(|unanswered: &RequestFailure| unanswered.is_starting && !self.waited_in_vain.get())
        .notify(|notice| {
            let waiting = begun.elapsed().saturating_add(notice.wait);
            if waiting > ANNOUNCED_AFTER && !is_announced {
                is_announced = true;
                say(&format!(
                    "waiting for {} to be ready, up to {} (--wait-for-server)",
                    self.base,
                    human(self.wait)
                ));
            }
        });
        asked.await.map_err(|gave_up| {
            let mut unanswered = gave_up.into_last_or_else(|stop| {
                RequestFailure::finally(ExitError::failed(format!("{}: {stop}", self.base)))
            });
            self.waited_in_vain.set(unanswered.is_starting);
            unanswered.is_unknown |= is_unknown.get();
            unanswered
        })
    }

    async fn once(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        version: Option<&Version>,
    ) -> Result<Answer, RequestFailure> {
        let token = self.token().await?;
        let url = format!("{}{path}", self.base);
        let mut request = self
            .client
            .request(method, &url)
            .bearer_auth(token.as_str());
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        if let Some((name, value)) = version.map(Version::field) {
            request = request.header(name, value);
        }
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let tag = response.headers().get(ETAG);
        let tag = tag.and_then(|tag| tag.to_str().ok()).unwrap_or_default();
        let tag = tag.to_owned();
        let text = response.text().await.map_err(|e| self.unreachable(&e))?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        let is_problem = value
            .as_ref()
            .is_some_and(|value| value["detail"].is_string());
        let error = match value {
            Some(value) if status.is_success() => return Ok(Answer { value, tag }),
            Some(problem) if is_problem => ExitError::failed(match status {
                StatusCode::UNAUTHORIZED => format!(
                    "--token-file {}: this is not the token of this server ({}): name the file that its `relent deliver serve` has written",
                    self.token_file.display(),
                    self.base
                ),
                StatusCode::PRECONDITION_FAILED => {
                    "it has changed since this command read it, by another client, or by this command if the response was lost: \
                     look at it before you run the command again"
                        .to_owned()
                }
                _ => on_command_line(sanitized(problem["detail"].as_str().unwrap_or_default())),
            }),
            _ => ExitError::failed(format!(
                "{} responded with {status}, but not as `relent deliver serve` does: check --server",
                self.base
            )),
        };
        Err(RequestFailure {
            error,
            is_missing: is_problem && status == StatusCode::NOT_FOUND,
            is_unknown: status.is_server_error(),
            is_starting: status == StatusCode::SERVICE_UNAVAILABLE,
        })
    }

    /// Reads the token. If its file is missing, waits for the server first, which writes it before it listens.
    async fn token(&self) -> Result<Token, RequestFailure> {
        if let Some(token) = self.piped_token.get() {
            return Ok(token.clone());
        }
        let mut text = read_file(self.token_file.clone()).await;
        if matches!(&text, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            let health = format!("{}/health", self.base);
            let listens = self.client.get(health).send().await;
            listens.map_err(|error| self.unreachable(&error))?;
            text = read_file(self.token_file.clone()).await;
        }
        let wrong = |error: &dyn std::fmt::Display| {
            let file = self.token_file.display();
            RequestFailure::finally(ExitError::usage(format!("--token-file {file}: {error}")))
        };
        let (text, is_pipe) = text.map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::PermissionDenied => "run the command as the owner of the file",
                _ => "it is where `relent deliver serve` was started",
            };
            wrong(&format!("cannot be read: {error}; {advice}"))
        })?;
        let token: Token = text.parse().map_err(|error| wrong(&error))?;
        if is_pipe {
            let _ = self.piped_token.set(token.clone());
        }
        Ok(token)
    }

    /// The error for a request without a response.
    fn unreachable(&self, error: &reqwest::Error) -> RequestFailure {
        let cause = classify(error).cause;
        let root = root(error);
        let io = root.downcast_ref::<io::Error>().map(io::Error::kind);
        let is_refused = io == Some(io::ErrorKind::ConnectionRefused);
        let place = error.url().map_or_else(|| self.base.clone(), host_and_port);
        let reason = match cause {
            Cause::Network(Network::Dns | Network::NameNotFound) => format!("{cause} ({place})"),
            Cause::Network(Network::Connect) => {
                format!("{} ({place})", without_number(&root.to_string()))
            }
            Cause::Network(Network::Handshake) => {
                format!("{cause} ({place}): if it speaks no TLS, use http://")
            }
            Cause::Timeout => format!("no response within {} ({place})", human(REQUEST_TIMEOUT)),
            cause => format!("{cause}: {root} ({place})"),
        };
        RequestFailure {
            error: ExitError::failed(format!(
                "{} does not respond: {reason}; start it with `relent deliver serve`, or name another with --server",
                self.base
            )),
            is_missing: false,
            is_unknown: !is_refused,
            is_starting: is_refused || cause == Cause::Network(Network::Reset),
        }
    }
}

/// Returns the contents of the file, and whether it is a pipe. A pipe blocks a thread of its own, not the handling of
/// signals.
async fn read_file(path: PathBuf) -> io::Result<(String, bool)> {
    let read = spawn_blocking(move || {
        let mut file = File::open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok((text, !file.metadata()?.is_file()))
    });
    read.await.map_err(io::Error::from).flatten()
}

/// Advice in messages of the API, with the equivalent on the command line.
const ADVICE: &[(&str, &str)] = &[
    (
        "send the content token of this server",
        "name the file with the content token of the server by --token-file",
    ),
    ("GET /v1/messages lists", "`relent deliver list` lists"),
    (
        "GET /v1/endpoints lists",
        "`relent deliver endpoints list` lists",
    ),
    ("by ?discard=true", "by --discard"),
    ("by ?allow_unsigned=true", "by --allow-unsigned"),
    (
        "register it first",
        "register it first by `relent deliver endpoints add`",
    ),
    (
        "the operator of the sender can allow http as well",
        "`relent deliver serve --allow-http` allows http as well",
    ),
    (
        "if it is the operator's own, allow its network",
        "if it is your own, allow its network by `relent deliver serve --allow-network CIDR`",
    ),
];

/// The members of an endpoint that begin an error message of the API, with the equivalent option.
const OPTIONS: [(&str, &str); 5] = [
    ("url: ", "URL: "),
    ("policy: ", "--policy: "),
    ("secrets: ", "--secret: "),
    ("secret: ", "--secret: "),
    ("concurrency: ", "--concurrency: "),
];

fn on_command_line(detail: String) -> String {
    let detail = ADVICE.iter().fold(detail, |detail, (of_the_api, here)| {
        detail.replace(of_the_api, here)
    });
    OPTIONS.iter().fold(detail, |detail, (of_the_api, here)| {
        match detail.strip_prefix(of_the_api) {
            Some(rest) => format!("{here}{rest}"),
            None => detail,
        }
    })
}

pub(super) fn json(value: &impl Serialize) -> Result<String, ExitError> {
    let json =
        serde_json::to_string(value).map_err(|error| ExitError::failed(error.to_string()))?;
    // Characters that change the direction of text occur only in strings, where JSON has an escape for them.
    let escape = |character: char| match escape_bidi(&character.to_string()) {
        escaped if escaped.len() > character.len_utf8() => {
            format!("\\u{:04x}", u32::from(character))
        }
        same => same,
    };
    match json.is_ascii() {
        true => Ok(json),
        false => Ok(json.chars().map(escape).collect()),
    }
}

/// Percent-encodes a part of a path or a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Makes text from others safe for one line of a terminal: replaces control characters, and escapes characters that
/// change the direction of text.
pub(super) fn sanitized(text: &str) -> String {
    let visible = |character: char| match character {
        '\n' | '\r' | '\t' => ' ',
        character if character.is_control() => '\u{fffd}',
        character => character,
    };
    let line: String = text.chars().map(visible).collect();
    escape_bidi(&line)
}

/// A text member of a response.
pub(super) fn text(value: &Value, key: &str) -> String {
    sanitized(value[key].as_str().unwrap_or_default())
}

/// Describes why a pending message waits, with the time until then; `None` if it does not wait.
pub(super) fn wait_text(message: &Value) -> Option<String> {
    let wait = message["wait"].as_object()?;
    let detail = wait["detail"].as_str().unwrap_or_default();
    let until = wait["until_ms"].as_i64().map(relative_time);
    let until = until.map_or_else(String::new, |until| format!(", {until}"));
    Some(sanitized(detail) + &until)
}

/// A point in time, in milliseconds since 1970; written as a time ago, or as in RFC 3339.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointInTime(pub(super) i64);

pub(super) fn moment(text: &str) -> Result<PointInTime, String> {
    if let Ok(ago) = duration(text) {
        let at = Timestamp::now()
            .checked_sub(ago)
            .map_err(|_| format!("{text} ago is too long"))?;
        return Ok(PointInTime(at.as_millisecond()));
    }
    text.parse()
        .map(|at: Timestamp| PointInTime(at.as_millisecond()))
        .map_err(|_| {
            "use a duration, such as 2h for two hours ago, or a time such as 2026-01-31T12:00:00Z"
                .to_owned()
        })
}

/// Formats a time in milliseconds since 1970 as "2m ago" or "in 2m".
pub(super) fn relative_time(ms: i64) -> String {
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
    fn text_of_a_receiver_is_sanitized_for_the_terminal() {
        assert_eq!(
            sanitized("a\nb\u{1b}[31mc\u{9b}d\u{202e}e"),
            "a b\u{fffd}[31mc\u{fffd}d\\u{202e}e"
        );
        let printed = json(&"a\u{202e}\u{61c}é").unwrap();
        assert_eq!(printed, "\"a\\u202e\\u061cé\"");
        let read: String = serde_json::from_str(&printed).unwrap();
        assert_eq!(read, "a\u{202e}\u{61c}é");
    }

    #[test]
    fn a_time_option_accepts_a_timestamp_or_a_duration_ago() {
        assert_eq!(moment("1970-01-01T00:00:01Z").unwrap().0, 1000);
        let hour = Timestamp::now().as_millisecond() - moment("1h").unwrap().0;
        assert!((3_600_000..3_660_000).contains(&hour), "{hour}");
        for wrong in ["", "yesterday", "2026-01-31", "-1h"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
