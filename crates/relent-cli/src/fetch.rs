//! `relent fetch`: fetches the complete response of a URL, and writes it once.

mod args;
mod curl;
mod data;
mod ending;
mod hop;
mod limits;
pub(crate) mod network_errors;
mod output;
mod part_file;
mod progress;
mod proxies;
mod request;
mod resolve;
mod trust;
mod tunnels;
mod verbose;
mod write_out;

use std::fmt::Display;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response, StatusCode};
use nix::sys::signal::Signal;
use relent::clock::TokioClock;
use relent::driver::Driver;
use relent::failure::Cause;
use relent::hook::Queued;
use relent::trace::TraceJson;
use relent::{Attempt, Failure, Policy, Summary};
use relent_reqwest::{
    AttemptError, Body, Client, Download, DownloadHook, FailedAttempt, LastResult, NextDelay,
};
use relent_reqwest::{default_builder, is_followed, track_redirects};
use reqwest::redirect;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::admission::report_no_hedging;
use crate::console::{print, report_error};
use crate::exit_status::ExitError;
use crate::live_output::{Countdown, NextRetry, SessionMessages};
use crate::signals::{Signals, ignore_file_size_signal};
use crate::trace_out::TraceOut;
use crate::writing::STALLED_READER;
pub(crate) use args::{AFTER_HELP, FetchArgs};
pub(crate) use curl::replacement_for;
use ending::Ending;
use hop::ManualRedirects;
use network_errors::Route;
use output::{Output, UNWRITABLE};
use progress::SharedBar;
use proxies::Proxies;
use request::RequestHead;
use trust::Trust;
use write_out::SharedFetchData;

/// The minimum number of bytes of a body in each `--idle-timeout`.
const MIN_BODY_BYTES: u64 = 1 << 10;
/// The time for the body of a final error response after the deadline, so that a stalled reader cannot block the exit.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Fetches until there is a complete response or the policy stops, and returns the exit status.
///
/// # Errors
/// Nothing was sent: the arguments are wrong, data cannot be read, or the output cannot be written.
pub(crate) async fn run(args: FetchArgs) -> Result<i32, ExitError> {
    let start = RequestHead::from_args(&args).map_err(ExitError::usage)?;
    // A named pipe can block this; a signal ends relent until it listens.
    let policy = policy(&args).map_err(ExitError::usage)?;
    let mut signals = Signals::listen()
        .and_then(|signals| ignore_file_size_signal().map(|()| signals))
        .map_err(|error| ExitError::failed(format!("cannot listen to signals: {error}")))?;
    let proxies = match args.unix_socket {
        // A Unix socket replaces all proxies.
        Some(_) => Proxies::default(),
        None => Proxies::choose(args.proxy.as_deref(), args.noproxy.as_deref())
            .map_err(ExitError::usage)?,
    };
    let over_tls = start.url().scheme() == "https" || args.location || proxies.any_over_tls();
    // Opening a named pipe blocks until its other end is open.
    let files = trust::Files::named(&args);
    let trust = spawn_blocking(move || Trust::choose(&files, over_tls));
    let trust = unless_cancelled(&mut signals, trust).await?;
    let trust = trust.map_err(cannot_start)??;
    let trace = args.options.trace.clone();
    let trace = spawn_blocking(move || trace.as_deref().map(TraceOut::open).transpose());
    let trace = unless_cancelled(&mut signals, trace).await?;
    let trace = trace.map_err(cannot_start)?.map_err(ExitError::usage)?;
    let output = Output::open(&args, start.method(), start.url());
    let mut output = unless_cancelled(&mut signals, output).await??;
    let way = Route {
        url: start.url().clone(),
        proxies,
        connect_timeout: connect_timeout(args.connect_timeout, &policy),
        chosen_connect_timeout: args.connect_timeout,
        unix_socket: args.unix_socket.clone(),
    };
    // Standard input may be slow, and a signal must not leave a temporary file behind.
    let prepared = unless_cancelled(&mut signals, start.with_data(&args)).await??;
    let by_hand = prepared.request.headers().contains_key(HOST) || prepared.sends_file();
    let client = client(&args, &way, trust, by_hand, policy.clone())?;
    let download = Download::new(&client, prepared.request.clone());
    let mut download = download.min_rate(MIN_BODY_BYTES, args.idle_timeout);
    if args.repeatable {
        download = download.repeatable(true);
    }
    let download = match args.continues() {
        true => output
            .take_up(download.assume_unchanged())
            .map_err(|error| ExitError {
                status: UNWRITABLE,
                message: format!("-C: {error}"),
            })?,
        false => Some(download),
    };

    let quiet = args.says_nothing();
    let live = match args.silent && args.show_error && !args.options.quiet {
        true => SessionMessages::new(quiet).reporting_end(),
        false => SessionMessages::new(quiet),
    };
    let why = "an attempt includes the body, and two bodies cannot go to one output";
    report_no_hedging(&policy, live, why);
    let countdown = Countdown::new(live);
    let mut fetch = Fetch {
        args: &args,
        way: &way,
        countdown: &countdown,
        bar: output.bar(),
        hops: ManualRedirects::new(args.location && by_hand, prepared.request.clone()),
        seen: output.seen.clone(),
        not_followed: None,
        failed: None,
    };
    fetch.seen.lock().on_request(&way.url);
    output.follows = fetch.hops.by_hand();
    let (mut ending, summary) = match download {
        Some(download) => {
            let end = policy
                .deadline()
                .and_then(|limit| Instant::now().checked_add(limit));
            let received = tokio::select! {
                biased;
                received = fetch.receive(download, &mut output, &mut signals) => received,
                never = countdown.draw() => match never {},
            };
            let summary = received.summary.clone();
            (
                fetch.end(received, &mut output, &mut signals, end).await,
                summary,
            )
        }
        // An earlier call has received the whole body.
        None => {
            let mut nothing = Driver::builder(&policy, TokioClock).traced().start();
            let ending = tokio::select! {
                biased;
                signal = signals.cancelled() => Ending::Cancelled(signal),
                finished = output.finish() => match finished {
                    Ok(()) => Ending::Complete,
                    Err(error) => Ending::Unwritable(error),
                },
            };
            (ending, nothing.summary(None))
        }
    };
    let mut seen = fetch.seen.lock().clone();
    if let Some(why) = fetch.not_followed
        && matches!(ending, Ending::Complete | Ending::Redirect(..))
    {
        ending = Ending::NotFollowed(why);
    }
    output.end_line();
    ending.say(live, &summary, &policy, &prepared, &mut output);
    let status = ending.status(summary.reason, output.is_file());
    if let Some(trace) = trace {
        let mut json = TraceJson::new(&summary);
        if let Some(key) = prepared.sent_key() {
            json = json.idempotency_key(key);
        }
        if let Err(error) = trace.finish(&json, Some(STALLED_READER)) {
            report_error(&error);
        }
    }
    if let Some(format) = &args.write_out {
        // Bytes of an earlier response do not count.
        seen.size = if seen.status == 0 {
            0
        } else {
            output.received()
        };
        seen.retries = summary.attempts.saturating_sub(1);
        seen.elapsed = summary.elapsed;
        seen.exit = status;
        // On a thread, signals are handled while a stalled reader blocks it.
        let text = format.fill(&seen);
        let printed = unless_cancelled(&mut signals, spawn_blocking(move || print(&text))).await?;
        if let Err(error) = printed.map_err(cannot_start)? {
            report_error(&format!("-w: {error}"));
        }
    }
    Ok(status)
}

/// Runs the preparation before the first attempt, unless a signal cancels it.
async fn unless_cancelled<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<T, ExitError> {
    tokio::select! {
        biased;
        signal = signals.cancelled() => Err(ExitError::by_signal(signal)),
        done = work => Ok(done),
    }
}

fn cannot_start(error: impl Display) -> ExitError {
    ExitError::failed(format!("cannot start: {error}"))
}

/// The time limit for a connection. It ends before an attempt, so that each address of a name is tried, and so that it
/// is known that the server has not received the request.
fn connect_timeout(chosen: Duration, policy: &Policy) -> Duration {
    let attempt = [policy.attempt_timeout(), policy.deadline()];
    let limits = attempt.into_iter().flatten().map(|limit| limit / 10 * 9);
    limits.fold(chosen, Duration::min)
}

fn policy(args: &FetchArgs) -> Result<Arc<Policy>, String> {
    let mut policy = args.policy_options().resolve()?.policy;
    if !args.retry_on.is_empty() {
        policy = policy
            .into_builder()
            .retry_on(args.retry_on.iter().copied())
            .build()
            .map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(policy))
}

fn client(
    args: &FetchArgs,
    way: &Route,
    trust: Trust,
    by_hand: bool,
    policy: Arc<Policy>,
) -> Result<Client, ExitError> {
    const AGENT: &str = concat!("relent/", env!("CARGO_PKG_VERSION"));
    let (location, connect_timeout) = (args.location, way.connect_timeout);
    let (idle_timeout, proxies) = (args.idle_timeout, way.proxies.clone());
    let resolved = resolve::choose(&args.resolve, &way.url).map_err(ExitError::usage)?;
    let unix_socket = args.unix_socket.clone();
    let plain = move || {
        let builder = default_builder()
            .user_agent(AGENT)
            .connect_timeout(connect_timeout);
        let builder = trust.apply(resolve::apply(builder, &resolved));
        match &unix_socket {
            Some(path) => builder.unix_socket(path.clone()),
            None => builder,
        }
    };
    let tunnels = proxies.tunnels(|| {
        let builder = plain().redirect(track_redirects(redirect::Policy::none()));
        // A tunnel consumes its connection, and HTTP/2 would share it.
        builder.http1_only().pool_max_idle_per_host(0)
    });
    let tunnels = tunnels.map_err(|error| cannot_start(AttemptError::Transport(error)))?;
    let builder = move || {
        let builder = plain()
            .redirect(track_redirects(hop::policy(location, by_hand)))
            .referer(false);
        proxies.apply(builder, tunnels.as_ref())
    };
    let options = args.options.clone();
    Client::from_builder(builder, policy)
        // The read timeout of reqwest would also end a long upload that the server is reading.
        .map(|client| {
            client
                .traced()
                .read_timeout(idle_timeout)
                .random(move || options.random())
        })
        .map_err(|error| cannot_start(AttemptError::Transport(error)))
}

/// The progress of a download as shown to the user, and its final state.
struct Fetch<'c> {
    args: &'c FetchArgs,
    way: &'c Route,
    countdown: &'c Countdown,
    bar: SharedBar,
    hops: ManualRedirects,
    seen: SharedFetchData,
    /// The reason why the final redirect was not followed.
    not_followed: Option<String>,
    /// The failure of the last attempt, with its description.
    failed: Option<(String, Failure)>,
}

impl DownloadHook for Fetch<'_> {
    fn before_attempt(&mut self, attempt: Attempt) {
        self.countdown.clear();
        self.seen.lock().on_request(&self.way.url);
        if self.args.verbose {
            verbose::on_request(self.hops.request(), attempt.number);
        }
    }

    fn after_failure(&mut self, attempt: u32, failed: &FailedAttempt, next: Option<NextDelay>) {
        self.bar.clear();
        if let LastResult::Refused(response) = &failed.last {
            if self.args.verbose {
                verbose::on_response(response.version(), response.status(), response.headers());
            }
            self.seen.lock().on_response(
                response.status().as_u16(),
                response.url(),
                response.headers().get(CONTENT_TYPE),
            );
        }
        let outcome = self.way.outcome(failed);
        if let Some(next) = next {
            self.countdown.wait(NextRetry {
                attempt,
                outcome: outcome.clone(),
                hint: failed.failure.hint,
                wait: next.delay,
                is_shortened: next.is_shortened,
            });
        }
        self.failed = Some((outcome, failed.failure));
    }

    fn queued(&mut self, queued: &Queued) {
        self.countdown.queued(queued);
    }

    fn follow(&mut self, head: &Response<()>) -> Option<Request<Body>> {
        let next = self.hops.next(head)?;
        if self.args.verbose {
            verbose::on_response(head.version(), head.status(), head.headers());
            verbose::on_redirect(&next);
        }
        Some(next)
    }
}

/// The result of a download, and the signal that has ended it.
struct Received<'c> {
    result: Result<Response<()>, Option<LastResult>>,
    summary: Summary,
    download: Download<'c>,
    signal: Option<Signal>,
}

impl Fetch<'_> {
    /// Runs the download until it succeeds or gives up, or a signal cancels it.
    async fn receive<'d>(
        &mut self,
        download: Download<'d>,
        output: &mut Output,
        signals: &mut Signals,
    ) -> Received<'d> {
        let mut cancelled_by = None;
        let cancelled = async {
            let signal = *cancelled_by.insert(signals.cancelled().await);
            Failure::ambiguous().cause(Cause::Signal(signal as i32))
        };
        let received = download.run(output, self, cancelled).await;
        self.countdown.clear();
        self.bar.clear();
        Received {
            result: received.result,
            summary: received.summary,
            download: received.download,
            signal: cancelled_by,
        }
    }

    /// Handles the end of a download: also prints the body of a final error response, until `end`.
    async fn end(
        &mut self,
        received: Received<'_>,
        output: &mut Output,
        signals: &mut Signals,
        end: Option<Instant>,
    ) -> Ending {
        let Received {
            result,
            mut download,
            signal,
            ..
        } = received;
        if let Some(signal) = signal {
            return Ending::Cancelled(signal);
        }
        let last = match result {
            Ok(head) => return self.complete(&head, output),
            Err(last) => last,
        };
        let (Some((outcome, failure)), Some(last)) = (self.failed.take(), last) else {
            return Ending::HeldBack;
        };
        let response = match last {
            LastResult::Refused(response) => response,
            LastResult::Error(error) => {
                return Ending::failed(&failure, self.way.looks_up_proxy(), outcome, error);
            }
        };
        output.refuse();
        let end = end.map(|end| end.max(Instant::now() + ERROR_BODY_TIMEOUT));
        let ending = tokio::select! {
            biased;
            signal = signals.cancelled() => Ending::Cancelled(signal),
            printed = download.finish(response, output) => Ending::Refused {
                outcome,
                printed: printed.map(drop),
            },
            () = until(end) => Ending::Refused {
                outcome,
                printed: Err(AttemptError::Timeout(ERROR_BODY_TIMEOUT)),
            },
        };
        self.bar.clear();
        ending
    }

    /// Handles the successful response.
    fn complete(&mut self, head: &Response<()>, output: &Output) -> Ending {
        if self.args.verbose {
            verbose::on_response(head.version(), head.status(), head.headers());
        }
        let url = output::url_of(head);
        let kind = head.headers().get(CONTENT_TYPE);
        self.seen
            .lock()
            .on_response(head.status().as_u16(), &url, kind);
        let leads = output::is_redirect(head);
        self.not_followed =
            (self.args.location && is_followed(head.status())).then(|| self.hops.why_not(head));
        let redirect = head.status().is_redirection() && head.status() != StatusCode::NOT_MODIFIED;
        match redirect && (output.is_file() || leads) && !self.args.head {
            true => Ending::Redirect(head.status(), leads),
            false => Ending::Complete,
        }
    }
}

/// Waits until `end`, or for ever without it.
async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => pending().await,
    }
}
