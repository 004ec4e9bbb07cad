//! How `relent fetch` ends: the exit status, and what is said.

use std::io::{self, ErrorKind};

use http::{Method, StatusCode};
use indicatif::HumanBytes;
use nix::sys::signal::Signal;
use relent::failure::{Cause, Network};
use relent::{Failure, StopReason, Summary};
use relent_reqwest::AttemptError;

use super::limits::TooLarge;
use super::output::{Output, UNWRITABLE};
use super::request::Prepared;
use super::words::{refused_by_socks, refused_tunnel};
use crate::console::complain;
use crate::live::Live;

/// How the last attempt ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// With a complete response that is no failure.
    Complete,
    /// With a redirect that was not followed, and whether it leads anywhere.
    Redirect(StatusCode, bool),
    /// With a redirect that -L could not follow, and why.
    NotFollowed(String),
    /// With a response that says failure; and whether its body could be printed.
    Refused {
        outcome: String,
        printed: Result<(), AttemptError>,
    },
    /// Without an attempt: it was held back for as long as it may wait.
    HeldBack,
    /// Without a complete response.
    Failed { status: i32, outcome: String },
    /// With a response that could not be written here.
    Unwritable(io::Error),
    /// By a signal.
    Cancelled(Signal),
}

/// curl's numbers.
mod curl {
    pub(super) const NO_PROXY: i32 = 5;
    pub(super) const NO_NAME: i32 = 6;
    pub(super) const NO_CONNECTION: i32 = 7;
    pub(super) const NOT_HTTP: i32 = 8;
    pub(super) const CUT_SHORT: i32 = 18;
    pub(super) const REFUSED: i32 = 22;
    pub(super) const UNREADABLE: i32 = 26;
    pub(super) const TIME: i32 = 28;
    pub(super) const HANDSHAKE: i32 = 35;
    pub(super) const REDIRECTS: i32 = 47;
    pub(super) const RECEIVE: i32 = 56;
    pub(super) const CERTIFICATE: i32 = 60;
    pub(super) const TOO_LARGE: i32 = 63;
    pub(super) const PROXY: i32 = 97;
}

/// EX_TEMPFAIL of sysexits.h.
const RETRY_LATER: i32 = 75;

impl Ending {
    /// The end of an attempt without a complete response.
    pub(crate) fn failed(
        failure: &Failure,
        by_proxy: bool,
        outcome: String,
        error: AttemptError,
    ) -> Self {
        let status = match &error {
            AttemptError::Body(_) => curl::UNREADABLE,
            AttemptError::Transport(error) if error.is_redirect() => curl::REDIRECTS,
            AttemptError::Transport(error) if refused_tunnel(error).is_some() => curl::RECEIVE,
            AttemptError::Transport(error) if refused_by_socks(error).is_some() => curl::PROXY,
            _ => match status_of(failure.cause) {
                // Only the proxy's name is looked up here.
                curl::NO_NAME if by_proxy => curl::NO_PROXY,
                status => status,
            },
        };
        match error {
            AttemptError::Sink(error) if TooLarge::of(&error).is_some() => Self::Failed {
                status: curl::TOO_LARGE,
                outcome,
            },
            AttemptError::Sink(error) => Self::Unwritable(error),
            _ => Self::Failed { status, outcome },
        }
    }

    /// The exit status. `for_file`: the response was to go to a file, and has not.
    pub(crate) fn status(&self, reason: Option<StopReason>, for_file: bool) -> i32 {
        match self {
            Self::Complete => 0,
            Self::Redirect(..) if !for_file => 0,
            Self::Redirect(..) | Self::NotFollowed(_) => curl::REDIRECTS,
            Self::Cancelled(signal) => 128 + *signal as i32,
            // It has seen what it wanted.
            Self::Unwritable(error) if error.kind() == ErrorKind::BrokenPipe => 0,
            Self::Unwritable(_) => UNWRITABLE,
            _ if reason == Some(StopReason::RetryLater) => RETRY_LATER,
            Self::Refused { .. } => curl::REFUSED,
            Self::HeldBack => curl::TIME,
            Self::Failed { status, .. } => *status,
        }
    }

    /// Says how it ended, unless all is well.
    pub(crate) fn say(
        &self,
        live: Live,
        summary: &Summary,
        prepared: &Prepared,
        output: &mut Output,
    ) {
        for note in output.notes() {
            live.say(|| note);
        }
        match self {
            Self::Complete => return,
            Self::Redirect(status, leads) => {
                let redirect = format!("status {} is a redirect", status.as_u16());
                let helps = match leads {
                    true => "-L follows it",
                    false => "it has no Location that could be followed",
                };
                if output.is_file() {
                    complain(&format!("{redirect}: the file is as it was; {helps}"));
                } else {
                    live.say(|| format!("{redirect}, and this was its body: {helps}"));
                }
                return;
            }
            Self::NotFollowed(why) => {
                complain(&format!("the redirect was not followed: {why}"));
            }
            Self::Refused {
                outcome, printed, ..
            } => {
                live.gave_up(summary, outcome);
                match printed {
                    Ok(()) => {}
                    Err(AttemptError::Sink(error)) => unwritable(error, output),
                    Err(error) => {
                        live.say(|| format!("its body is not printed to its end: {error}"));
                    }
                }
            }
            Self::Failed { outcome, .. } => live.gave_up(summary, outcome),
            Self::HeldBack => live.gave_up(summary, "there was no attempt"),
            Self::Unwritable(error) => unwritable(error, output),
            Self::Cancelled(_) => {}
        }
        if let Some((length, part)) = output.left_over() {
            live.say(|| {
                format!(
                    "{} stay in {part}: the same command with -C - goes on with them if the server \
                     sends the rest",
                    HumanBytes(length)
                )
            });
        }
        match (summary.reason, self) {
            (Some(StopReason::NotRepeatable), _) => {
                live.say(|| not_repeatable(prepared.request.method()));
            }
            (Some(StopReason::NotReplayable), Self::Failed { status, .. })
                if *status == curl::CUT_SHORT =>
            {
                live.say(|| {
                    "a part of the body has gone out, so that it could not begin anew; \
                     with -o FILE it can"
                        .to_owned()
                });
            }
            _ => {}
        }
        if let Some(key) = &prepared.key {
            live.say(|| {
                format!(
                    "to send the same request again safely: --idempotency-key {}",
                    quoted(key)
                )
            });
        }
    }
}

fn unwritable(error: &io::Error, output: &Output) {
    if error.kind() != ErrorKind::BrokenPipe {
        complain(&format!(
            "cannot write the response to {}: {error}",
            output.name()
        ));
    }
}

fn not_repeatable(method: &Method) -> String {
    format!(
        "{method} is not repeated once it may have taken effect; \
         --idempotency-key auto makes it safe if the server knows Idempotency-Key, \
         and --repeatable is your word that twice does no harm"
    )
}

/// A key as a shell takes it.
fn quoted(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    if key.bytes().all(plain) {
        key.to_owned()
    } else {
        format!("'{}'", key.replace('\'', r"'\''"))
    }
}

fn status_of(cause: Cause) -> i32 {
    match cause {
        Cause::Status(_) | Cause::Grpc(_) => curl::REFUSED,
        Cause::Timeout => curl::TIME,
        Cause::Network(network) => match network {
            Network::Dns | Network::NameNotFound => curl::NO_NAME,
            Network::Connect => curl::NO_CONNECTION,
            Network::Handshake => curl::HANDSHAKE,
            Network::Certificate => curl::CERTIFICATE,
            Network::Truncated => curl::CUT_SHORT,
            Network::Malformed => curl::NOT_HTTP,
            Network::RefusedStream
            | Network::GoAway
            | Network::Reset
            | Network::BadRequest
            | Network::Other => curl::RECEIVE,
        },
        Cause::Error
        | Cause::Exit(_)
        | Cause::Signal(_)
        | Cause::Output
        | Cause::Pending
        | Cause::Conflict => curl::RECEIVE,
    }
}
