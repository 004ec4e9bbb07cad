//! The options of `relent fetch`, and what its help says.

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
  Download a file under its own name; FILE is whole or as it was before:
      relent fetch -O https://example.com/backup.tar

  Go on with it in another call, after Ctrl-C or a power cut:
      relent fetch -C - -O https://example.com/backup.tar

  Post a form so that it takes effect once, if the server knows Idempotency-Key:
      relent fetch -d amount=5 --idempotency-key auto https://example.com/pay

  Wait for something that was just created, for at most a minute:
      relent fetch --retry-on 404,5xx -m 60 https://example.com/jobs/7

  Pass on a large download while it arrives:
      relent fetch https://example.com/backup.tar | tar x

What is repeated:
  What the server did not process, whatever the request: 429, 421 and 425
  (once), 503 and 408 with Retry-After, a refused connection. What may have
  taken effect, such as 500, 502, 504, a bare 503, a timeout or a cut
  connection, only if it may run twice: GET, HEAD, OPTIONS, TRACE, PUT, DELETE,
  QUERY, any method with an Idempotency-Key, an If-Match or `If-None-Match: *`,
  and with --repeatable any. Retry-After is obeyed. A download that advances has
  no end of retries, only of time: once 1 MiB more has arrived, their count
  begins anew.

Output:
  The body appears once. To standard output it goes when it is complete, until
  then it is kept in memory and beyond 1 MiB in a temporary file (in TMPDIR,
  else /tmp). A body that can be resumed, one with a strong ETag or
  Last-Modified, goes out as it arrives once it is longer than 1 MiB, and if it
  is cut short the rest is asked for. What is kept is bounded (--max-buffer): a
  longer body goes out as it arrives, too. With --stream all of any body goes
  out as it arrives; what is cut short then and cannot be resumed is not
  repeated.
  A body of HTTP/1 without Content-Length and chunks ends where its connection
  ends: nothing tells whether it is whole.

Output to FILE (-o, -O):
  The body is written to FILE.part, which is locked, and takes the place of FILE
  when all of it has reached the disk. Permissions, owner and symbolic links
  stay. FILE is left as it was by anything but a complete representation: by a
  failure, by 204 and by a 304 that -H 'If-None-Match: …' or the like asked for
  (status 0), and by a redirect that is not followed (status 47). The body of
  a failure or a redirect goes to standard error, with -s nowhere: standard
  output has only what -w prints.
  After a failure or a signal, FILE.part stays if the rest can be asked for, and
  FILE.part.json, which only its owner can read, says of what it is a part: the
  URL, the URL that answered, the validator and the length. Another fetch to
  FILE begins anew unless it has -C. Without -C a retry goes on only with a
  strong ETag or Last-Modified; with -C it goes on without one, too.

Exit status: that of the last attempt, in curl's numbers
  0     a complete response with a status below 400 that is not retried; or the
        reader of standard output went away
  22    a status of 400 or above, a lower one that --retry-on or the policy
        lists, or a failure of gRPC
  5     the proxy could not be looked up       28    time ended it
  6     the name could not be looked up        35    the TLS handshake failed
  7     no connection                          56    the connection broke
  8     the response is not valid HTTP         56    the proxy refused CONNECT
  18    the body was cut short                 97    the SOCKS proxy refused
  47    too many redirects, a loop of them, or one that is not followed
  60    the server's certificate is not acceptable
  58    the certificate of --cert cannot be used
  77    the certificates of --cacert, SSL_CERT_FILE or SSL_CERT_DIR cannot be
        read
  75    the server said to come back later than the limits allow; when is
        printed
  23    the response could not be written, here
  26    the data could not be read
  63    the body is longer than --max-filesize
  2     the command line or the environment is wrong: nothing was sent
  128+n signal n ended it (130: Ctrl-C)

Environment:
  HTTP_PROXY, HTTPS_PROXY, ALL_PROXY
        the proxy for a URL, also in lower case; -x goes before them
  NO_PROXY
        hosts without one, such as localhost,.example.com,10.0.0.0/8, or * for
        all
  SSL_CERT_FILE, SSL_CERT_DIR
        the certificates to trust in place of the system's
  What is set and cannot be used is an error.";

/// What nobody waits for, for `-m 0` in place of the deadline that a policy may have: the longest that an
/// option can say.
const NO_LIMIT: Duration = Duration::from_nanos(u64::MAX);

/// What `relent fetch` is given.
#[derive(Args)]
pub(crate) struct FetchArgs {
    /// What to fetch: http://… or https://…
    #[arg(value_name = "URL")]
    pub(super) url: String,

    /// Write the body to FILE when it is complete; - is standard output
    ///
    /// Until then, and after a failure, FILE is as it was; what has arrived is in FILE.part.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,

    /// Write it to a file with the name at the end of the URL
    #[arg(short = 'O', long, conflicts_with = "output")]
    pub(super) remote_name: bool,

    /// Go on with FILE.part from an earlier call, or with FILE; the value is -
    ///
    /// FILE.part is taken up if it is a part of the same URL and the server still has the same
    /// representation, by its ETag or Last-Modified; otherwise the download begins anew. A signed URL
    /// may have another query each time, if validator and length are the same. Where no strong
    /// validator is known, where each server sends its own, and for FILE itself, which has none, this
    /// option is your statement that the representation has not changed. It holds for the first
    /// request and for each retry, which go on where the last one ended.
    #[arg(short = 'C', long = "continue-at", value_name = "-", value_parser = from_the_end,
        allow_hyphen_values = true)]
    pub(super) continue_at: Option<()>,

    /// The same as -C -
    #[arg(long = "continue")]
    pub(super) go_on: bool,

    /// Follow redirects, at most 10
    ///
    /// Without it a redirect is a response like any other. Authorization, Cookie, Host and
    /// Proxy-Authorization are sent to no other origin than that of URL. After a redirect only what
    /// may run twice is repeated, whatever the last server says: the first may have done what it was
    /// asked to.
    #[arg(short = 'L', long)]
    pub(super) location: bool,

    /// Leave out the body of a status of 400 or above; the exit status says it anyway
    #[arg(short, long)]
    pub(super) fail: bool,

    /// Print the status line and the header fields of the final response before the body
    #[arg(short, long)]
    pub(super) include: bool,

    /// Ask only for the head, by HEAD, and print it
    #[arg(short = 'I', long, conflicts_with = "data_any")]
    pub(super) head: bool,

    /// Show the head of each request and response on standard error, without credentials
    #[arg(short, long)]
    pub(super) verbose: bool,

    /// Say nothing about failures, and show no progress; as --quiet
    #[arg(short, long)]
    pub(super) silent: bool,

    /// With -s: say all the same why there is no other attempt
    #[arg(short = 'S', long)]
    pub(super) show_error: bool,

    /// Let the body go out as it arrives
    #[arg(long, conflicts_with_all = ["output", "remote_name"])]
    pub(super) stream: bool,

    /// The most that is kept of a body for standard output, and that is read of standard input
    ///
    /// Bytes, or a number with KiB, MiB or GiB. A body that is longer goes out as it arrives, and is not
    /// repeated from then on unless its rest can be asked for. With more on standard input nothing is sent
    /// (status 26); a file may have any length.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub(super) max_buffer: u64,

    /// Give FILE the time of Last-Modified
    #[arg(short = 'R', long)]
    pub(super) remote_time: bool,

    /// Receive at most this many bytes per second on average; K, M and G are powers of 1024
    ///
    /// The time of this pause counts against -m, but not against --idle-timeout.
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    pub(super) limit_rate: Option<u64>,

    /// Give up a body of more than this many bytes (exit status 63); K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_hyphen_values = true)]
    pub(super) max_filesize: Option<u64>,

    /// Print this after the fetch, such as '%{http_code}\n'
    ///
    /// There are %{http_code}, %{response_code}, %{num_retries}, %{size_download}, %{time_total} in
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

    /// Send this file by PUT, or with - standard input; its name is added to a URL that ends with /
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
    /// It is sent as a string in quotes, as draft-ietf-httpapi-idempotency-key-header asks; use
    /// -H 'Idempotency-Key: …' for a server that wants none. The server must know the field, else
    /// it protects nothing.
    #[arg(
        long,
        value_name = "auto|VALUE",
        allow_hyphen_values = true,
        help_heading = "Retry options"
    )]
    pub(super) idempotency_key: Option<String>,

    /// Your word that this request may run twice, whatever its method
    #[arg(long, help_heading = "Retry options")]
    pub(super) repeatable: bool,

    /// Retry exactly these failures, such as 404,5xx,timeout,network
    ///
    /// It never makes a request repeatable: what may have taken effect is retried only if it may run
    /// twice.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = pattern,
        help_heading = "Retry options")]
    pub(super) retry_on: Vec<Pattern>,

    /// The same as --max-retries
    #[arg(long, value_name = "N", value_parser = retries, allow_hyphen_values = true,
        conflicts_with_all = ["max_retries", "attempts"], help_heading = "Retry options")]
    pub(super) retry: Option<Retries>,

    /// The same as --deadline, for all attempts together; a bare number is in seconds; 0 is no limit
    #[arg(short = 'm', long, value_name = "D", value_parser = seconds, allow_hyphen_values = true,
        conflicts_with = "deadline", help_heading = "Retry options")]
    pub(super) max_time: Option<Duration>,

    /// The time given to establish a connection; a bare number is in seconds
    #[arg(long, value_name = "D", value_parser = some_time, allow_hyphen_values = true,
        help_heading = "Connection options")]
    pub(super) connect_timeout: Option<Duration>,

    /// The time in which a server that sends too little is cut off; a bare number is in seconds
    ///
    /// An attempt ends when no byte has come from the server for this long, and when less than
    /// 1 KiB of a body has come in each of such a time: no server holds the fetch for ever by going
    /// silent or by dripping. Raise it for a server that thinks for longer before it answers.
    #[arg(long, value_name = "D", value_parser = some_time, allow_hyphen_values = true,
        default_value = "5m", help_heading = "Connection options")]
    pub(super) idle_timeout: Duration,

    /// Go through this proxy: http, https, socks4, socks4a, socks5 or socks5h; '' is none
    ///
    /// socks4a and socks5h look up the host's name at the proxy, socks4 and socks5 here.
    #[arg(
        short = 'x',
        long,
        value_name = "URL",
        help_heading = "Connection options"
    )]
    pub(super) proxy: Option<String>,

    /// Go through no proxy to these hosts, in place of NO_PROXY; * is all
    #[arg(long, value_name = "LIST", help_heading = "Connection options")]
    pub(super) noproxy: Option<String>,

    /// Connect to ADDRESS for HOST, in place of a name look-up; repeatable
    ///
    /// PORT is that of the URL, or one that a redirect leads to. An address of IPv6 may stand in
    /// brackets. Several addresses are tried in turn.
    #[arg(long, value_name = "HOST:PORT:ADDRESS[,ADDRESS]…", value_parser = super::resolve::parse,
        help_heading = "Connection options")]
    pub(super) resolve: Vec<super::resolve::Resolve>,

    /// Connect to this socket of the file system, whatever the host of the URL, and through no proxy
    #[arg(long, value_name = "PATH", help_heading = "Connection options")]
    pub(super) unix_socket: Option<PathBuf>,

    /// Trust the certificates in this file (PEM), and no others
    #[arg(long, value_name = "FILE", help_heading = "Connection options")]
    pub(super) cacert: Option<PathBuf>,

    /// Show this certificate (PEM) to the server; its key is in the same file, or in --key
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

    /// Accept any certificate: nothing tells then who answers, and who reads along
    #[arg(short = 'k', long, help_heading = "Connection options")]
    pub(super) insecure: bool,

    #[command(flatten)]
    pub(super) options: PolicyOptions,
}

/// Almost any of them can hold a credential.
impl fmt::Debug for FetchArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchArgs").finish_non_exhaustive()
    }
}

impl FetchArgs {
    /// The options of the policy, with those that have curl's names.
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

    /// Whether nothing is said but what relent itself cannot do.
    pub(super) const fn says_nothing(&self) -> bool {
        self.silent || self.options.quiet
    }

    /// Whether what an earlier call has left is to be taken up.
    pub(super) const fn continues(&self) -> bool {
        self.go_on || self.continue_at.is_some()
    }
}

fn from_the_end(text: &str) -> Result<(), String> {
    match text {
        "-" => Ok(()),
        _ => Err("use -C -: relent looks for itself how much is there".to_owned()),
    }
}

/// A duration; a bare number is in seconds, as curl has it.
fn seconds(text: &str) -> Result<Duration, String> {
    let bare = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if !text.is_empty() && text.bytes().all(bare) {
        return duration(&format!("{text}s"));
    }
    duration(text)
}

/// A number of bytes as curl writes it, such as 100, 64k or 1.5G.
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
        Duration::ZERO => Err("a server needs some time".to_owned()),
        limit => Ok(limit),
    }
}

/// What can happen to a fetch.
const FAILURES: &str = "use a status (503, 500-504, 5xx), grpc:unavailable, timeout, network, connect, \
                        throttled or any";

fn pattern(text: &str) -> Result<Pattern, String> {
    match text.parse() {
        Ok(Pattern::Exit(..) | Pattern::Signal | Pattern::Output) => {
            Err(format!("that happens to commands: {FAILURES}"))
        }
        Ok(pattern) => Ok(pattern),
        Err(error) => {
            let error: PatternError = error;
            match error.is_of_known() {
                true => Err(error.to_string()),
                // The words of the error are those of all that retries.
                false => Err(format!("{text:?} names no failure: {FAILURES}")),
            }
        }
    }
}
