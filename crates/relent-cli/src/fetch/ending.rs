//! The end of `relent fetch`: the exit status and the final message.

use std::io::{self, ErrorKind};

use http::{Method, StatusCode};
use indicatif::HumanBytes;
use nix::sys::signal::Signal;
use relent::failure::{Cause, Network};
use relent::{Failure, Policy, StopReason, Summary};
use relent_reqwest::{AttemptError, is_followed};

use super::limits::TooLarge;
use super::network_errors::{refused_by_socks, refused_tunnel};
use super::output::{Output, UNWRITABLE};
use super::request::Prepared;
use crate::console::report_error;
use crate::live_output::SessionMessages;

/// The end of the last attempt.
#[derive(Debug)]
pub(crate) enum Ending {
    /// A complete response that is no failure.
    Complete,
    /// A redirect that was not followed, and whether it has a usable Location.
    Redirect(StatusCode, bool),
    /// A redirect that -L could not follow, with the reason.
    NotFollowed(String),
    /// An error response, and whether its body could be printed.
    Refused {
        outcome: String,
        printed: Result<(), AttemptError>,
    },
    /// No attempt: it was held until its time limit.
    HeldBack,
    /// No complete response.
    Failed { status: i32, outcome: String },
    /// A response that could not be written locally.
    Unwritable(io::Error),
    /// A signal.
    Cancelled(Signal),
}

/// curl's exit statuses.
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
    /// Classifies the end of an attempt without a complete response.
    pub(crate) fn failed(
        failure: &Failure,
        by_proxy: bool,
        outcome: String,
        error: AttemptError,
    ) -> Self {
        let status = match &error {
            AttemptError::Body(_) => curl::UNREADABLE,
            AttemptError::Redirect(_) => curl::REDIRECTS,
            AttemptError::Transport(error) if error.is_redirect() => curl::REDIRECTS,
            AttemptError::Transport(error) if refused_tunnel(error).is_some() => curl::RECEIVE,
            AttemptError::Transport(error) if refused_by_socks(error).is_some() => curl::PROXY,
            _ => match status_of(failure.cause) {
                // With a proxy, relent resolves only the name of the proxy.
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

    /// Returns the exit status. `for_file`: the response was meant for a file, and was not written to it.
    pub(crate) fn status(&self, reason: Option<StopReason>, for_file: bool) -> i32 {
        match self {
            Self::Complete => 0,
            Self::Redirect(..) if !for_file => 0,
            Self::Redirect(..) | Self::NotFollowed(_) => curl::REDIRECTS,
            Self::Cancelled(signal) => 128 + *signal as i32,
            // The reader needs no more.
            Self::Unwritable(error) if error.kind() == ErrorKind::BrokenPipe => 0,
            Self::Unwritable(_) => UNWRITABLE,
            _ if reason == Some(StopReason::RetryLater) => RETRY_LATER,
            Self::Refused { .. } => curl::REFUSED,
            Self::HeldBack => curl::TIME,
            Self::Failed { status, .. } => *status,
        }
    }

    /// Reports the end, unless it is a success.
    pub(crate) fn say(
        &self,
        live: SessionMessages,
        summary: &Summary,
        policy: &Policy,
        prepared: &Prepared,
        output: &mut Output,
    ) {
        for note in output.notes() {
            live.say(|| note);
        }
        match self {
            Self::Complete => return,
            Self::Redirect(status, leads) => {
                let redirect = format!("redirect ({}) not followed", status.as_u16());
                let helps = match leads {
                    true => "use -L to follow it",
                    false if is_followed(*status) => "it has no Location that could be followed",
                    false => "no redirect with this status is followed",
                };
                if output.is_file() {
                    report_error(&format!("{redirect}, the file is unchanged; {helps}"));
                } else {
                    live.say(|| format!("{redirect}; {helps}"));
                }
                return;
            }
            Self::NotFollowed(why) => {
                report_error(&format!("the redirect was not followed: {why}"));
            }
            Self::Refused {
                outcome, printed, ..
            } => {
                live.report_end(summary, policy, outcome);
                match printed {
                    Ok(()) => {}
                    Err(AttemptError::Sink(error)) => unwritable(error, output),
                    Err(error) => {
                        live.say(|| format!("the body could not be printed completely: {error}"));
                    }
                }
            }
            Self::Failed { outcome, .. } => live.report_end(summary, policy, outcome),
            Self::HeldBack => live.report_end(summary, policy, "there was no attempt"),
            // The reader has what it wants.
            Self::Unwritable(error) if error.kind() == ErrorKind::BrokenPipe => return,
            Self::Unwritable(error) => unwritable(error, output),
            Self::Cancelled(_) => {}
        }
        if let Some((length, part)) = output.left_over() {
            live.say(|| {
                format!(
                    "{} are kept in {part}: the same command with -C - resumes the download if the \
                     server sends the rest",
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
                    "a part of the body was written already, so the download could not start over; \
                     with -o FILE it can"
                        .to_owned()
                });
            }
            _ => {}
        }
        if let Some(key) = &prepared.key {
            live.at_end().say(|| {
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
        report_error(&format!(
            "cannot write the response to {}: {error}",
            output.name()
        ));
    }
}

fn not_repeatable(method: &Method) -> String {
    format!(
        "{method} is not repeated once it may have taken effect; \
         --idempotency-key auto makes it safe if the server supports Idempotency-Key, \
         and --repeatable states that the request may run twice"
    )
}

/// Quotes a key for a shell, if necessary.
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
            | Network::Local
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
