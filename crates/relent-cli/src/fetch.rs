//! `relent fetch`: the complete response of a URL, exactly once.

mod args;
mod curl;
mod data;
mod ending;
mod hop;
mod output;
mod part;
mod progress;
mod proxies;
mod request;
mod trust;
mod verbose;
mod words;
mod write_out;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use http::header::{CONTENT_TYPE, HOST};
use nix::sys::signal::Signal;
use relent::clock::TokioClock;
use relent::driver::{Decision, Driver, Stop, Target};
use relent::failure::{Cause, Repeatable};
use relent::random::Random;
use relent::trace::TraceJson;
use relent::{Destination, Failure, Policy, StopReason};
use relent_reqwest::{AttemptError, Client, Download, Failed, Last};
use relent_reqwest::{recipe, watched};

use crate::admission::{admitted, say_what_does_not_apply};
use crate::console::{complain, print};
use crate::live::{Live, Waiting};
use crate::quit::Quit;
use crate::signals::{Signals, outlive_file_limit};
use crate::trace_out::TraceOut;
pub(crate) use args::{AFTER_HELP, FetchArgs};
pub(crate) use curl::instead;
use ending::Ending;
use hop::Hops;
use output::{Output, UNWRITABLE};
use proxies::Proxies;
use request::Start;
use trust::Trust;
use words::Way;
use write_out::Seen;

/// The least of a body that is to come in each `--idle-timeout`, in bytes.
const LEAST: u64 = 1 << 10;

/// Fetches until there is a complete response or the policy stops, and returns the exit status.
///
/// # Errors
/// When nothing was sent: bad arguments, unreadable data, an output that cannot be written.
pub(crate) async fn run(args: FetchArgs) -> Result<i32, Quit> {
    let mut signals = Signals::listen()
        .and_then(|signals| outlive_file_limit().map(|()| signals))
        .map_err(|error| Quit::failed(format!("cannot listen to signals: {error}")))?;
    let start = Start::from_args(&args).map_err(Quit::usage)?;
    let policy = policy(&args).map_err(Quit::usage)?;
    let proxies = Proxies::choose(args.proxy.as_deref(), args.noproxy.as_deref());
    let proxies = proxies.map_err(Quit::usage)?;
    let over_tls = start.url().scheme() == "https" || args.location || proxies.any_over_tls();
    let trust = Trust::choose(&args, over_tls)?;
    let trace = args.options.trace.as_deref().map(TraceOut::open);
    let trace = trace.transpose().map_err(Quit::usage)?;
    let mut output = tokio::select! {
        biased;
        signal = signals.cancelled() => return Ok(128 + signal as i32),
        output = Output::open(&args, start.method(), start.url()) => output?,
    };
    let way = Way {
        url: start.url().clone(),
        proxies,
        idle_timeout: args.idle_timeout,
        connect_timeout: args.connect_timeout,
    };
    // Standard input may take its time, and a signal must not leave what was read of it behind.
    let prepared = tokio::select! {
        biased;
        signal = signals.cancelled() => return Ok(128 + signal as i32),
        prepared = start.with_data(&args) => prepared?,
    };
    let own_host = prepared.request.headers().contains_key(HOST);
    let client = client(&args, &way.proxies, trust, own_host, policy.clone())?;
    let download = begin(&client, prepared.request.clone(), args.idle_timeout);
    let download = match args.continues() {
        true => output.take_up(download).map_err(|error| Quit {
            status: UNWRITABLE,
            message: format!("-C: {error}"),
        })?,
        false => Some(download),
    };

    let quiet = args.says_nothing();
    let live = match args.silent && args.show_error && !args.options.quiet {
        true => Live::new(quiet).telling_end(),
        false => Live::new(quiet),
    };
    let why = "an attempt goes on with the body, and two bodies cannot go into one output";
    say_what_does_not_apply(&policy, live, why);
    // One caller, for which the whole policy holds.
    let there = Destination::new(policy.clone());
    let mut driver = Driver::builder(&policy, TokioClock)
        .repeatable(Repeatable::known(args.repeatable))
        .random(args.options.random())
        .traced()
        .destination(&there)
        .start();
    let mut seen = Seen {
        url: way.url.to_string(),
        ..Seen::default()
    };
    let (mut ending, stop) = match download {
        Some(download) => {
            let mut fetch = Fetch {
                args: &args,
                client: &client,
                download,
                output: &mut output,
                signals,
                live,
                hops: Hops::new(args.location && own_host, prepared.request.clone()),
                way: &way,
                seen: &mut seen,
            };
            fetch.output.follows = fetch.hops.by_hand();
            fetch.attempts(&mut driver).await
        }
        // All of it was there already.
        None => match output.finish().await {
            Ok(()) => (Ending::Complete, None),
            Err(error) => (Ending::Unwritable(error), None),
        },
    };
    if args.location
        && seen.is_redirect
        && matches!(ending, Ending::Complete | Ending::Redirect(..))
    {
        ending = Ending::NotFollowed;
    }
    let summary = driver.summary(stop);
    ending.say(live, &summary, &prepared, &mut output);
    let status = ending.status(summary.reason, output.is_file());
    if let Some(trace) = trace {
        let mut json = TraceJson::new(&summary);
        if let Some(key) = prepared.sent_key() {
            json = json.idempotency_key(key);
        }
        if let Err(error) = trace.finish(&json) {
            complain(&error);
        }
    }
    if let Some(format) = &args.write_out {
        seen.size = output.received();
        seen.retries = summary.attempts.saturating_sub(1);
        seen.elapsed = summary.elapsed;
        seen.exit = status;
        if let Err(error) = print(&format.fill(&seen)) {
            complain(&format!("-w: {error}"));
        }
    }
    Ok(status)
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
    proxies: &Proxies,
    trust: Trust,
    own_host: bool,
    policy: Arc<Policy>,
) -> Result<Client, Quit> {
    const AGENT: &str = concat!("relent/", env!("CARGO_PKG_VERSION"));
    let (location, connect_timeout) = (args.location, args.connect_timeout);
    let (idle_timeout, proxies) = (args.idle_timeout, proxies.clone());
    let recipe = move || {
        let recipe = recipe()
            .user_agent(AGENT)
            .redirect(watched(hop::policy(location, own_host)))
            .read_timeout(idle_timeout)
            .referer(false);
        let recipe = trust.apply(proxies.apply(recipe));
        match connect_timeout {
            Some(limit) => recipe.connect_timeout(limit),
            None => recipe,
        }
    };
    Client::made_by(recipe, policy)
        .map_err(|error| Quit::failed(format!("cannot start: {}", AttemptError::Transport(error))))
}

fn begin(
    client: &Client,
    request: http::Request<relent_reqwest::Body>,
    idle_timeout: Duration,
) -> Download<'_> {
    Download::new(client, request).min_rate(LEAST, idle_timeout)
}

/// A download with all that takes part in it.
struct Fetch<'c> {
    args: &'c FetchArgs,
    client: &'c Client,
    download: Download<'c>,
    output: &'c mut Output,
    signals: Signals,
    live: Live,
    hops: Hops,
    way: &'c Way,
    seen: &'c mut Seen,
}

impl Fetch<'_> {
    /// Attempts until there is nothing more to attempt; and why.
    async fn attempts<R: Random, D: Target>(
        &mut self,
        driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    ) -> (Ending, Option<Stop>) {
        // The attempt before, if there was one.
        let mut last = None;
        loop {
            let entered = tokio::select! {
                biased;
                signal = self.signals.cancelled() => Err(signal),
                entered = admitted(driver, self.live) => Ok(entered),
            };
            let attempt = match entered {
                Ok(Ok(leave)) => driver.on_attempt(leave),
                Ok(Err(stop)) => return (self.held_back(last).await, Some(stop)),
                Err(signal) => return (Ending::Cancelled(signal), Some(driver.on_cancel())),
            };
            if self.args.verbose {
                verbose::asking(self.hops.request(), attempt.number);
            }
            let result = tokio::select! {
                biased;
                signal = self.signals.cancelled() => Err(signal),
                result = whole(
                    &mut self.download,
                    &mut self.hops,
                    self.client,
                    self.args,
                    attempt.limit,
                    self.output,
                ) => Ok(result),
            };
            self.output.pause();
            let failed = match result {
                Err(signal) => return cancelled_attempt(driver, signal),
                Ok(Ok(head)) => {
                    driver.on_success_with(Cause::Status(head.status().as_u16()));
                    self.see(&head);
                    let redirect = head.status().is_redirection() && head.status() != 304;
                    let redirect = redirect
                        && (self.output.is_file() || output::is_redirect(&head))
                        && !self.args.head;
                    return match redirect {
                        true => {
                            let leads = output::is_redirect(&head);
                            (Ending::Redirect(head.status(), leads), None)
                        }
                        false => (Ending::Complete, None),
                    };
                }
                Ok(Err(failed)) => failed,
            };
            if let Last::Refused(response) = &failed.last {
                if self.args.verbose {
                    verbose::answered(response.version(), response.status(), response.headers());
                }
                self.seen.answered(
                    response.status().as_u16(),
                    response.url(),
                    response.headers().get(CONTENT_TYPE),
                );
            }
            let known = self.args.repeatable || self.download.facts().repeatable;
            driver.set_repeatable(Repeatable::known(known));
            let after = match failed.decide(driver) {
                Decision::Retry { after } => after,
                Decision::Stop(stop) => {
                    let outcome = self.way.outcome(&failed);
                    let ending = self.last(outcome, &failed.failure, failed.last).await;
                    return (ending, Some(stop));
                }
            };
            let waiting = Waiting {
                attempt: attempt.number,
                outcome: self.way.outcome(&failed),
                hint: failed.failure.hint,
                wait: after,
            };
            let failure = failed.failure;
            let wait = async {
                let ((), outcome) = tokio::join!(self.live.wait(&waiting), failed.drain());
                last = Some((waiting.outcome.clone(), failure, outcome));
            };
            if let Some(signal) = self.signals.cancelling(wait).await {
                return (Ending::Cancelled(signal), Some(driver.on_cancel()));
            }
        }
    }

    /// Takes note of the response that is the result.
    fn see(&mut self, head: &Response<()>) {
        if self.args.verbose {
            verbose::answered(head.version(), head.status(), head.headers());
        }
        let url = hop::url_of(head);
        let kind = head.headers().get(CONTENT_TYPE);
        self.seen.answered(head.status().as_u16(), &url, kind);
        self.seen.is_redirect = output::is_redirect(head);
    }

    /// The next attempt was held back for as long as it may wait.
    async fn held_back(&mut self, last: Option<(String, Failure, Last)>) -> Ending {
        match last {
            Some((outcome, failure, last)) => self.last(outcome, &failure, last).await,
            None => Ending::HeldBack,
        }
    }

    /// What is left to do with the last attempt: a response that says failure is printed all the
    /// same.
    async fn last(&mut self, outcome: String, failure: &Failure, last: Last) -> Ending {
        let response = match last {
            Last::Refused(response) => response,
            Last::Error(error) => {
                return Ending::failed(failure, self.way.has_proxy(), outcome, error);
            }
        };
        self.output.refuse();
        let ending = tokio::select! {
            biased;
            signal = self.signals.cancelled() => Ending::Cancelled(signal),
            printed = self.download.finish(response, self.output) => Ending::Refused {
                outcome,
                printed: printed.map(drop),
            },
        };
        self.output.pause();
        ending
    }
}

/// One attempt, over all the redirects that are followed here and not by the client.
async fn whole<'c>(
    download: &mut Download<'c>,
    hops: &mut Hops,
    client: &'c Client,
    args: &FetchArgs,
    limit: Option<Duration>,
    output: &mut Output,
) -> Result<Response<()>, Failed> {
    let (began, mut left) = (Instant::now(), limit);
    loop {
        let head = download.attempt(left, output).await?;
        let Some(next) = hops.next(&head) else {
            return Ok(head);
        };
        if args.verbose {
            verbose::answered(head.version(), head.status(), head.headers());
            verbose::going_on(&next);
        }
        *download = begin(client, next, args.idle_timeout);
        left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
    }
}

fn cancelled_attempt<R: Random, D: Target>(
    driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    signal: Signal,
) -> (Ending, Option<Stop>) {
    let failure = Failure::ambiguous().cause(Cause::Signal(signal as i32));
    let stop = driver.on_stop(&failure, StopReason::Cancelled);
    (Ending::Cancelled(signal), Some(stop))
}
