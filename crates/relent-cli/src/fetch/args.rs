//! The options of `relent fetch`, with their help.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use relent::policy::{Pattern, PatternError};

use super::data::Data;
use crate::options::{PolicyOptions, Retries, duration, retries, size};

/// The end of `relent fetch --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  Download a file under its own name; FILE is complete or unchanged:
      relent fetch -O https://example.com/backup.tar

  Resume it in another call, after Ctrl-C or a power failure:
      relent fetch -C - -O https://example.com/backup.tar

  Post a form that takes effect once, if the server supports Idempotency-Key:
      relent fetch -d amount=5 --idempotency-key auto https://example.com/pay

  Wait for a new resource, for at most a minute:
      relent fetch --retry-on 404,5xx -m 60 https://example.com/jobs/7

  Pipe a large download while it arrives:
      relent fetch https://example.com/backup.tar | tar x

Retry conditions:
  A failure that the server did not process is retried for every request: 429,
  421 and 425 (once), 503 and 408 with Retry-After, a refused connection. An
  ambiguous failure may have taken effect: 500, 502, 504, 503 without
  Retry-After, a timeout or a broken connection. It is retried only if the
  request may run twice: GET, HEAD, OPTIONS, TRACE, PUT, DELETE, QUERY, any
  method with an Idempotency-Key, an If-Match or `If-None-Match: *`, and every
  request with --repeatable. Retry-After is respected. A download that makes
  progress is limited by time only: after each further MiB the count of retries
  restarts.

Output:
  The body is written once. It goes to standard output when it is complete;
  until then it is buffered in memory, and beyond 1 MiB in a temporary file (in
  TMPDIR, else /tmp). A resumable body (with a strong ETag or Last-Modified) is
  written as it arrives once it is longer than 1 MiB; if it is cut short, the
  rest is requested. The buffer is bounded (--max-buffer): a longer body is also
  written as it arrives. With --stream every body is written as it arrives; if
  it is cut short and cannot be resumed, it is not retried.
  An HTTP/1 body without Content-Length and chunks ends with its connection, so
  that a truncated body cannot be detected.

Output to FILE (-o, -O):
  The body is written to FILE.part, which is locked, and replaces FILE when it
  is complete on the disk. Permissions, owner and symbolic links are kept. Only
  a complete representation changes FILE: not a failure, not a 204, not a 304
  after -H 'If-None-Match: …' or the like (status 0), and not a redirect that is
  not followed (status 47). The body of a failure or a redirect goes to standard
  error, or nowhere with -s: standard output has only the output of -w.
  After a failure or a signal, FILE.part stays if the rest can be requested.
  Then FILE.part.json, which only its owner can read, describes it: the URL, the
  final URL, the validator and the length. Another fetch to FILE starts over
  unless it has -C. Without -C a retry resumes only with a strong ETag or
  Last-Modified; with -C it also resumes without one.

Exit status: the result of the last attempt, in curl's numbers
  0     a complete response whose status is below 400, unless --retry-on or the
        policy lists it; or standard output lost its reader
  22    a status of 400 or above, or one that --retry-on or the policy lists;
        or a failure of gRPC
  5     the proxy could not be looked up       28    a time limit ended it
  6     the name could not be looked up        35    the TLS handshake failed
  7     no connection                          56    the connection broke
  8     the response is not valid HTTP         56    the proxy refused CONNECT
  18    the body was cut short                 97    the SOCKS proxy refused
  47    more than 10 redirects, a loop of redirects, or one that cannot be
        followed; with -o FILE or -O also a redirect that is not followed.
        Without these options, a redirect that is not followed ends with 0
  60    the server's certificate is not acceptable
  58    the certificate of --cert cannot be used
  77    the certificates of --cacert, SSL_CERT_FILE or SSL_CERT_DIR cannot be
        read
  75    the Retry-After of the server is later than the deadline or max_hint of
        the policy allows; relent prints the time of the Retry-After
  23    the response could not be written locally
  26    the data could not be read
  63    the body is longer than --max-filesize
  2     the command line or the environment is wrong: nothing was sent
  128+n signal n ended it (130: Ctrl-C)

Environment:
  HTTP_PROXY, HTTPS_PROXY, ALL_PROXY
        the proxy for a URL, also in lower case; -x takes precedence
  NO_PROXY
        hosts without a proxy, such as localhost,.example.com,10.0.0.0/8, or *
        for all
  SSL_CERT_FILE, SSL_CERT_DIR
        trusted CA certificates instead of the system's
  A variable with an invalid value is an error.";

/// The deadline for `-m 0`, which replaces that of the policy: the longest duration that an option accepts, 584 years.
const NO_LIMIT: Duration = Duration::from_nanos(u64::MAX);

/// The arguments of `relent fetch`.
#[derive(Args)]
pub(crate) struct FetchArgs {
    /// The URL to fetch: http://… or https://…
    #[arg(value_name = "URL")]
    pub(super) url: String,

    /// Write the body to FILE when it is complete; - is standard output
    ///
    /// Until then, and after a failure, FILE is unchanged; received bytes are in FILE.part.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,

    /// Write the body to a file with the name at the end of the URL
    #[arg(short = 'O', long, conflicts_with = "output")]
    pub(super) remote_name: bool,

    /// Resume FILE.part of an earlier call, or FILE itself; the value is -
    ///
    /// FILE.part is resumed if it belongs to the same URL and the server still has the same
    /// representation, by its ETag or Last-Modified; otherwise the download starts over. The query of a
    /// signed URL may differ, and a redirect may lead to another mirror, if validator and length are the
    /// same. There may be no strong validator, or a different one from each server, and FILE itself has
    /// none: then this option is your statement that the representation has not changed. It applies to
    /// the first request and to each retry, which continue at the end of the previous one. A part of a
    /// response with Content-Encoding is continued only by the retries of the same call.
    #[arg(short = 'C', long = "continue-at", value_name = "OFFSET", value_parser = from_the_end,
        allow_hyphen_values = true)]
    pub(super) continue_at: Option<()>,

    /// Same as -C -
    #[arg(long = "continue")]
    pub(super) go_on: bool,

    /// Follow redirects, at most 10
    ///
    /// Without it a redirect is an ordinary response. Authorization, Cookie, Host and
    /// Proxy-Authorization are sent only to the origin of URL. After a redirect only a request that may
    /// run twice is retried, for any response of the last server: the first server may have processed
    /// the request.
    #[arg(short = 'L', long)]
    pub(super) location: bool,

    /// Print no body of a status of 400 or above
    #[arg(short, long)]
    pub(super) fail: bool,

    /// Print the status line and the header fields of the final response before the body
    #[arg(short, long)]
    pub(super) include: bool,

    /// Send a HEAD request, and print the head of the response
    #[arg(short = 'I', long, conflicts_with = "data_any")]
    pub(super) head: bool,

    /// Show the head of each request and response on standard error, without credentials
    #[arg(short, long)]
    pub(super) verbose: bool,

    /// Report no failures and show no progress; same as --quiet
    #[arg(short, long)]
    pub(super) silent: bool,

    /// With -s, still print the final error
    #[arg(short = 'S', long)]
    pub(super) show_error: bool,

    /// Write the body as it arrives
    #[arg(long, conflicts_with_all = ["output", "remote_name"])]
    pub(super) stream: bool,

    /// The buffer limit for a body to standard output, and for standard input
    ///
    /// Bytes, or a number with KiB, MiB or GiB. A longer body is written as it arrives, and is not
    /// retried from then on unless it can be resumed. If standard input is longer, nothing is sent
    /// (status 26); a file may have any length.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub(super) max_buffer: u64,

    /// Set the time of FILE to Last-Modified
    #[arg(short = 'R', long)]
    pub(super) remote_time: bool,

    /// Receive at most this many bytes per second on average; K, M and G are powers of 1024
    ///
    /// The pauses count towards -m, but not towards --idle-timeout.
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    pub(super) limit_rate: Option<u64>,

    /// Give up a body of more than this many bytes (exit status 63); K, M and G are powers of 1024; 0 is no limit
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_hyphen_values = true)]
    pub(super) max_filesize: Option<u64>,

    /// Print this after the fetch, such as '%{http_code}\n'
    ///
    /// Variables: %{http_code}, %{response_code}, %{num_retries}, %{size_download}, %{time_total} in
    /// seconds, %{url_effective}, %{content_type}, %{exitcode}; \n, \t, \r, \\ and %%.
    #[arg(short = 'w', long, value_name = "FORMAT", allow_hyphen_values = true,
        value_parser = super::write_out::parse)]
    pub(super) write_out: Option<super::write_out::Format>,

    /// The method [default: GET; POST with data; PUT with -T; HEAD with -I]
    #[arg(
        short = 'X',
        long = "request",
        value_name = "METHOD",
        help_heading = "Request options"
    )]
    pub(super) method: Option<String>,

    /// Send this header field; repeatable
    #[arg(
        short = 'H',
        long,
        value_name = "NAME: VALUE",
        help_heading = "Request options"
    )]
    pub(super) header: Vec<String>,

    #[command(flatten)]
    pub(super) data: Data,

    /// Send a field of a form as multipart/form-data; repeatable
    ///
    /// The contents of a file are sent with @FILE as a file and with <FILE as a value. ;type= and
    /// ;filename= behind them set the content type and the file's name.
    #[arg(short = 'F', long, value_name = "NAME=VALUE|NAME=@FILE", conflicts_with_all = ["data_any", "head"],
        help_heading = "Request options")]
    pub(super) form: Vec<String>,

    /// Send this file, or - for standard input, with PUT; its name is added to a URL that ends with /
    #[arg(short = 'T', long, value_name = "FILE", conflicts_with_all = ["data_any", "form", "head"],
        help_heading = "Request options")]
    pub(super) upload_file: Option<PathBuf>,

    /// Put the data into the query of the URL, and send no body
    #[arg(
        short = 'G',
        long,
        requires = "data_any",
        help_heading = "Request options"
    )]
    pub(super) get: bool,

    /// Log in with this name and password (Basic)
    #[arg(
        short,
        long,
        value_name = "USER:PASSWORD",
        help_heading = "Request options"
    )]
    pub(super) user: Option<String>,

    /// Send this User-Agent
    #[arg(
        short = 'A',
        long,
        value_name = "NAME",
        help_heading = "Request options"
    )]
    pub(super) user_agent: Option<String>,

    /// Send this Referer
    #[arg(
        short = 'e',
        long,
        value_name = "URL",
        help_heading = "Request options"
    )]
    pub(super) referer: Option<String>,

    /// Send this Idempotency-Key, or a new one with `auto`, which makes any method repeatable
    ///
    /// It is sent as a quoted string, as draft-ietf-httpapi-idempotency-key-header requires; use
    /// -H 'Idempotency-Key: …' to send it without quotes. It has no effect unless the server supports
    /// the field. After a failure relent prints the key, to send the same request again safely. It does
    /// not with -q, or with -s but without -S: then give a key of your own.
    #[arg(
        long,
        value_name = "auto|VALUE",
        allow_hyphen_values = true,
        help_heading = "Retry options"
    )]
    pub(super) idempotency_key: Option<String>,

    /// State that this request may run twice, with any method
    #[arg(long, help_heading = "Retry options")]
    pub(super) repeatable: bool,

    /// Retry exactly these failures, such as 404,5xx,timeout,network
    ///
    /// It never makes a request repeatable: after an ambiguous failure, a request is retried only if it
    /// may run twice.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = pattern,
        help_heading = "Retry options")]
    pub(super) retry_on: Vec<Pattern>,

    /// Same as --max-retries
    #[arg(long, value_name = "N", value_parser = retries, allow_hyphen_values = true,
        conflicts_with_all = ["max_retries", "attempts"], help_heading = "Retry options")]
    pub(super) retry: Option<Retries>,

    /// Same as --deadline, for all attempts together; a bare number is in seconds; 0 is no limit
    #[arg(short = 'm', long, value_name = "D", value_parser = seconds, allow_hyphen_values = true,
        conflicts_with = "deadline", help_heading = "Retry options")]
    pub(super) max_time: Option<Duration>,

    /// The time limit for establishing a connection; a bare number is in seconds
    ///
    /// Name resolution and the TLS handshake count. Each address of a name gets an equal share of it. It is
    /// at most nine tenths of --attempt-timeout and of --deadline.
    #[arg(long, value_name = "D", value_parser = some_time, allow_hyphen_values = true,
        default_value = "30s", help_heading = "Connection options")]
    pub(super) connect_timeout: Duration,

    /// The time after which an attempt ends if the server is silent; a bare number is in seconds
    ///
    /// An attempt ends if no byte arrives from the server for this long, or if less than 1 KiB of a body
    /// arrives in such a period: no server can block the fetch for ever by silence or by trickling. A
    /// server that reads the data of the request is not silent.
    /// Raise it for a server that takes longer to respond.
    #[arg(long, value_name = "D", value_parser = some_time, allow_hyphen_values = true,
        default_value = "5m", help_heading = "Connection options")]
    pub(super) idle_timeout: Duration,

    /// Use this proxy: http, https, socks4, socks4a, socks5 or socks5h; '' is none
    ///
    /// With socks4a and socks5h the proxy resolves the name of the host, with socks4 and socks5 relent
    /// does.
    #[arg(
        short = 'x',
        long,
        value_name = "URL",
        help_heading = "Connection options"
    )]
    pub(super) proxy: Option<String>,

    /// Use no proxy for these hosts; replaces NO_PROXY; * is all
    #[arg(long, value_name = "LIST", help_heading = "Connection options")]
    pub(super) noproxy: Option<String>,

    /// Connect to ADDRESS for HOST, instead of a DNS lookup; repeatable
    ///
    /// PORT is that of the URL or of a redirect. An IPv6 address may be in brackets. Several addresses
    /// are tried in turn.
    #[arg(long, value_name = "HOST:PORT:ADDRESS[,ADDRESS]…", value_parser = super::resolve::parse,
        help_heading = "Connection options")]
    pub(super) resolve: Vec<super::resolve::Resolve>,

    /// Connect to this Unix socket for every host, and without a proxy
    #[arg(long, value_name = "PATH", help_heading = "Connection options")]
    pub(super) unix_socket: Option<PathBuf>,

    /// The only trusted CA certificates (PEM)
    #[arg(long, value_name = "FILE", help_heading = "Connection options")]
    pub(super) cacert: Option<PathBuf>,

    /// The client certificate (PEM); its key is in the same file, or in --key
    #[arg(
        short = 'E',
        long,
        value_name = "FILE",
        help_heading = "Connection options"
    )]
    pub(super) cert: Option<PathBuf>,

    /// The key of --cert (PEM, without a password)
    #[arg(
        long,
        value_name = "FILE",
        requires = "cert",
        help_heading = "Connection options"
    )]
    pub(super) key: Option<PathBuf>,

    /// Accept any certificate: the server is not verified, and others may read and change the traffic
    #[arg(short = 'k', long, help_heading = "Connection options")]
    pub(super) insecure: bool,

    #[command(flatten)]
    pub(super) options: PolicyOptions,
}

/// Shows no arguments, because most of them can contain a credential.
impl fmt::Debug for FetchArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchArgs").finish_non_exhaustive()
    }
}

impl FetchArgs {
    /// The policy options, including those under curl's names.
    pub(super) fn policy_options(&self) -> PolicyOptions {
        let mut options = self.options.clone();
        options.max_retries = options.max_retries.or(self.retry);
        let max_time = self.max_time.map(|limit| match limit {
            Duration::ZERO => NO_LIMIT,
            limit => limit,
        });
        options.deadline = options.deadline.or(max_time);
        options
    }

    /// Whether only errors of relent itself are reported.
    pub(super) const fn says_nothing(&self) -> bool {
        self.silent || self.options.quiet
    }

    /// Whether a part of an earlier call is to be resumed.
    pub(super) const fn continues(&self) -> bool {
        self.go_on || self.continue_at.is_some()
    }
}

fn from_the_end(text: &str) -> Result<(), String> {
    match text {
        "-" => Ok(()),
        _ => Err("use -C -: relent finds the position itself".to_owned()),
    }
}

/// Parses a duration; a bare number is in seconds, as in curl.
fn seconds(text: &str) -> Result<Duration, String> {
    let bare = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if !text.is_empty() && text.bytes().all(bare) {
        return duration(&format!("{text}s"));
    }
    duration(text)
}

/// Parses a number of bytes in curl's format, such as 100, 64k or 1.5G.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a number of bytes: use 100, 64K, 10M or 2G");
    let (number, power) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 'b' | 'B')) => (&text[..at], 0),
        _ => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.is_empty() || part.len() > 6 {
        return Err(wrong());
    }
    let part = match part {
        "" => 0,
        _ => {
            let numerator: u64 = part.parse().map_err(|_| wrong())?;
            let scale = 10_u64.pow(u32::try_from(part.len()).map_err(|_| wrong())?);
            (numerator << power) / scale
        }
    };
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let bytes = whole.checked_mul(1 << power);
    bytes
        .and_then(|bytes| bytes.checked_add(part))
        .ok_or_else(wrong)
}

fn rate(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err(
            "at 0 bytes per second nothing arrives: leave the option out for no limit".to_owned(),
        ),
        rate => Ok(rate),
    }
}

fn some_time(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("use a time above 0".to_owned()),
        limit => Ok(limit),
    }
}

/// The failures that a fetch can have.
const FAILURES: &str = "use a status (503, 500-504, 5xx), grpc:unavailable, timeout, network, connect, \
                        throttled or any";

fn pattern(text: &str) -> Result<Pattern, String> {
    match text.parse() {
        Ok(Pattern::Exit(..) | Pattern::Signal | Pattern::Output) => {
            Err(format!("that is a failure of commands only: {FAILURES}"))
        }
        Ok(pattern) => Ok(pattern),
        Err(error) => {
            let error: PatternError = error;
            match error.has_known_form() {
                true => Err(error.to_string()),
                // The text of the error names failures that a fetch cannot have.
                false => Err(format!("{text:?} names no failure: {FAILURES}")),
            }
        }
    }
}
