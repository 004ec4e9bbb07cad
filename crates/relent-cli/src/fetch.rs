//! `relent fetch`: the complete response of a URL, exactly once.

mod ending;
mod output;
mod progress;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::Response;
use http::header::LOCATION;
use nix::sys::signal::Signal;
use relent::{
    Cause, Decision, Destination, Driver, Failure, Goes, Pattern, Policy, Random, Repeatable, Stop,
    StopReason, TokioClock, TraceJson,
};
use relent_http::client::{recipe, watched};
use relent_http::{AttemptError, Client, Download, Failed, Last};

use crate::console::complain;
use crate::live::{Live, Waiting};
use crate::options::{PolicyOptions, duration};
use crate::quit::Quit;
use crate::signals::Signals;
use crate::trace_out::TraceOut;
use ending::Ending;
use output::Output;
use request::Prepared;

/// The end of `relent fetch --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Download a file; FILE is whole or as it was before:
      relent fetch -o FILE https://example.com/file

  Post a form so that it takes effect once, where the server knows Idempotency-Key:
      relent fetch -d amount=5 --idempotency-key auto https://example.com/payments

  Wait for something that was just created, for at most a minute:
      relent fetch --retry-on 404,5xx,network --deadline 1m https://example.com/jobs/7

  Pass on a large download while it arrives:
      relent fetch https://example.com/backup.tar | tar x

What is repeated:
  What the server did not process, whatever the request: 429, 421 and 425 (once), 503 and 408 with
  Retry-After, a refused connection. What may have taken effect, such as 500, 502, 504, a bare 503, a
  timeout or a cut connection, only if it may run twice: GET, HEAD, OPTIONS, TRACE, PUT, DELETE,
  QUERY, and any method with an Idempotency-Key, an If-Match or `If-None-Match: *`. Retry-After is
  obeyed.

Output:
  The body appears once. To standard output it goes when it is complete, until then it is kept in
  memory and beyond 1 MiB in a temporary file (in TMPDIR, else /tmp). A body that can be resumed, one
  with a strong ETag, goes out as it arrives once it is longer than 1 MiB, and if it is cut short the
  rest is asked for. With --stream all of any body goes out as it arrives; what is cut short then and
  cannot be resumed is not repeated. The body of a status of 400 or above goes to standard output,
  also with -o: FILE is left as it was, or absent.
  A body of HTTP/1 without Content-Length and chunks ends where its connection ends: nothing tells
  whether it is whole.

Exit status: that of the last attempt, in curl's numbers
  0     a complete response with a status below 400; or the reader of standard output went away
  22    a status of 400 or above
  6     the name could not be looked up      35    the TLS handshake failed
  7     no connection                        56    the connection broke
  18    the body was cut short               60    the server's certificate is not acceptable
  28    time ended it                        47    too many redirects
  75    the server said to come back later than the limits allow; when is printed
  23    the response could not be written, here
  26    the data of -d could not be read
  2     the command line is wrong: nothing was sent
  128+n signal n ended it (130: Ctrl-C)

Environment:
  HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY   the proxy for a URL, or none
  SSL_CERT_FILE, SSL_CERT_DIR                    the certificates to trust in place of the system's";

/// What `relent fetch` is given.
#[derive(Args, Debug)]
pub(crate) struct FetchArgs {
    /// What to fetch: http://… or https://…
    #[arg(value_name = "URL")]
    url: String,

    /// The method [default: GET, with -d POST]
    #[arg(short = 'X', long = "request", value_name = "METHOD")]
    method: Option<String>,

    /// Send this header field; repeatable
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// Send this data, or the contents of FILE, or with @- of standard input
    ///
    /// Several are joined with &. The Content-Type is application/x-www-form-urlencoded unless -H
    /// says another. A file is sent as it is, line ends included.
    #[arg(short, long, value_name = "DATA|@FILE", allow_hyphen_values = true)]
    data: Vec<String>,

    /// Write the body to FILE; - is standard output
    ///
    /// It is written to a temporary file beside FILE, which takes its place when the body is
    /// complete. Until then, and after a failure, FILE is as it was.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the status line and the header fields of the final response before the body
    #[arg(short, long)]
    include: bool,

    /// Follow redirects, at most 10
    ///
    /// Without it a redirect is a response like any other. After a redirect only what may run twice is
    /// repeated, whatever the last server says: the first may have done what it was asked to.
    #[arg(short = 'L', long)]
    location: bool,

    /// The time given to establish a connection
    #[arg(long, value_name = "D", value_parser = some_time, allow_hyphen_values = true)]
    connect_timeout: Option<Duration>,

    /// The time without a single byte from the server after which an attempt is cut off
    ///
    /// It lets no server hold the fetch for ever by going silent. Raise it for a server that thinks
    /// for longer before it answers.
    #[arg(long, value_name = "D", value_parser = some_time, allow_hyphen_values = true,
        default_value = "5m")]
    idle_timeout: Duration,

    /// Let the body go out as it arrives
    #[arg(long, conflicts_with = "output")]
    stream: bool,

    /// Send this Idempotency-Key, or a new one with `auto`, which makes any method repeatable
    ///
    /// It is sent as a string in quotes, as draft-ietf-httpapi-idempotency-key-header asks; use
    /// -H 'Idempotency-Key: …' for a server that wants none. The server must know the field, else
    /// it protects nothing.
    #[arg(long, value_name = "auto|VALUE", allow_hyphen_values = true)]
    idempotency_key: Option<String>,

    /// Retry exactly these failures, such as 404,5xx,timeout,network
    ///
    /// It never makes a request repeatable: what may have taken effect is retried only if it may run
    /// twice.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = pattern)]
    retry_on: Vec<Pattern>,

    #[command(flatten)]
    options: PolicyOptions,
}

fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a server needs some time".to_owned()),
        limit => Ok(limit),
    }
}

fn pattern(text: &str) -> Result<Pattern, String> {
    match text.parse() {
        Ok(Pattern::Exit(..) | Pattern::Signal | Pattern::Output) => Err(
            "that happens to commands: use a status (503, 500-504, 5xx), timeout, network, connect \
             or any"
                .to_owned(),
        ),
        Ok(pattern) => Ok(pattern),
        Err(error) => Err(error.to_string()),
    }
}

/// Fetches until there is a complete response or the policy stops, and returns the exit status.
///
/// # Errors
/// When nothing was sent: bad arguments, unreadable data, an output that cannot be written.
pub(crate) async fn run(args: FetchArgs) -> Result<i32, Quit> {
    let prepared = Prepared::from_args(&args)?;
    let policy = policy(&args).map_err(Quit::usage)?;
    let trace = args.options.trace.as_deref().map(TraceOut::open);
    let trace = trace.transpose().map_err(Quit::usage)?;
    let output = Output::open(&args)?;
    let client = client(&args, policy.clone())?;
    let signals = Signals::listen()
        .map_err(|error| Quit::failed(format!("cannot listen to signals: {error}")))?;
    let mut fetch = Fetch {
        download: Download::new(&client, prepared.request.clone()),
        output,
        signals,
        live: Live::new(args.options.quiet),
        follow: args.location,
    };

    // One caller: of what a destination shares, it has the budget.
    let there = Destination::new(&policy);
    let mut driver = Driver::builder(&policy, TokioClock)
        .repeatable(Repeatable::known(fetch.download.facts().repeatable))
        .random(args.options.random())
        .traced()
        .destination(&there)
        .start();
    let (ending, stop) = fetch.attempts(&mut driver).await;
    let summary = driver.summary(stop);
    ending.say(fetch.live, &summary, &prepared, &fetch.output);
    if let Some(trace) = trace {
        let mut json = TraceJson::new(&summary);
        if let Some(key) = prepared.sent_key() {
            json = json.idempotency_key(key);
        }
        if let Err(error) = trace.finish(&json) {
            complain(&error);
        }
    }
    Ok(ending.status(summary.reason))
}

fn policy(args: &FetchArgs) -> Result<Arc<Policy>, String> {
    let mut policy = args.options.resolve()?.policy;
    if !args.retry_on.is_empty() {
        policy = policy
            .into_builder()
            .retry_on(args.retry_on.iter().copied())
            .build()
            .map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(policy))
}

fn client(args: &FetchArgs, policy: Arc<Policy>) -> Result<Client, Quit> {
    const AGENT: &str = concat!("relent/", env!("CARGO_PKG_VERSION"));
    const MOST_REDIRECTS: usize = 10;
    let (location, connect_timeout) = (args.location, args.connect_timeout);
    let idle_timeout = args.idle_timeout;
    let recipe = move || {
        let redirects = if location {
            reqwest::redirect::Policy::limited(MOST_REDIRECTS)
        } else {
            reqwest::redirect::Policy::none()
        };
        let recipe = recipe()
            .user_agent(AGENT)
            .redirect(watched(redirects))
            .read_timeout(idle_timeout)
            .referer(false);
        match connect_timeout {
            Some(limit) => recipe.connect_timeout(limit),
            None => recipe,
        }
    };
    Client::made_by(recipe, policy)
        .map_err(|error| Quit::failed(format!("cannot start: {}", AttemptError::Transport(error))))
}

/// A download with all that takes part in it.
struct Fetch<'c> {
    download: Download<'c>,
    output: Output,
    signals: Signals,
    live: Live,
    /// Whether redirects are followed.
    follow: bool,
}

impl Fetch<'_> {
    /// Attempts until there is nothing more to attempt; and why.
    async fn attempts<R: Random, D: Goes>(
        &mut self,
        driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    ) -> (Ending, Option<Stop>) {
        loop {
            let attempt = driver.on_attempt();
            let result = tokio::select! {
                biased;
                signal = self.signals.cancelled() => Err(signal),
                result = whole(&mut self.download, attempt.limit, &mut self.output) => Ok(result),
            };
            self.output.pause();
            let failed = match result {
                Err(signal) => return cancelled_attempt(driver, signal),
                Ok(Ok(head)) => {
                    driver.on_success_with(Cause::Status(head.status().as_u16()));
                    return (self.succeeded(&head), None);
                }
                Ok(Err(failed)) => failed,
            };
            let after = match failed.decide(driver) {
                Decision::Retry { after } => after,
                Decision::Stop(stop) => return (self.last(failed).await, Some(stop)),
            };
            let waiting = Waiting {
                attempt: attempt.number,
                outcome: ending::outcome(&failed),
                hint: failed.failure.hint,
                wait: after,
            };
            let wait = async {
                tokio::join!(self.live.wait(&waiting), failed.drain());
            };
            if let Some(signal) = self.signals.cancelling(wait).await {
                return (Ending::Cancelled(signal), Some(driver.on_cancel()));
            }
        }
    }

    fn succeeded(&self, head: &Response<()>) -> Ending {
        let redirect = matches!(head.status().as_u16(), 301 | 302 | 303 | 307 | 308);
        if self.follow && redirect && head.headers().contains_key(LOCATION) {
            Ending::NotFollowed
        } else {
            Ending::Complete
        }
    }

    /// What is left to do with the last attempt: a response that says failure is printed all the
    /// same.
    async fn last(&mut self, failed: Failed) -> Ending {
        let outcome = ending::outcome(&failed);
        let response = match failed.last {
            Last::Refused(response) => response,
            Last::Error(error) => return Ending::failed(&failed.failure, outcome, error),
        };
        let print = async {
            self.download.finish(response, &mut self.output).await?;
            self.output.complete().await.map_err(AttemptError::Sink)
        };
        let ending = tokio::select! {
            biased;
            signal = self.signals.cancelled() => Ending::Cancelled(signal),
            printed = print => Ending::Refused { outcome, printed },
        };
        self.output.pause();
        ending
    }
}

/// An attempt that includes writing what was kept back.
async fn whole(
    download: &mut Download<'_>,
    limit: Option<Duration>,
    output: &mut Output,
) -> Result<Response<()>, Failed> {
    let head = download.attempt(limit, output).await?;
    output.complete().await.map_err(|error| Failed {
        failure: Failure::permanent(),
        stop: Some(StopReason::Permanent),
        progressed: false,
        last: Last::Error(AttemptError::Sink(error)),
    })?;
    Ok(head)
}

fn cancelled_attempt<R: Random, D: Goes>(
    driver: &mut Driver<'_, TokioClock, R, &Policy, D>,
    signal: Signal,
) -> (Ending, Option<Stop>) {
    let failure = Failure::ambiguous().cause(Cause::Signal(signal as i32));
    let stop = driver.on_stop(&failure, StopReason::Cancelled);
    (Ending::Cancelled(signal), Some(stop))
}
