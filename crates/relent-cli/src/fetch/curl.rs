//! The options of curl that `relent fetch` has not, and what to use in their place.

/// What curl's users ask for under these names.
const INSTEAD: [(&[&str], &str); 43] = [
    (
        &["--compressed"],
        "the body is written as the server sends it: for a smaller transfer \
      -H 'Accept-Encoding: gzip', and gunzip behind it",
    ),
    (&["--cookie", "-b"], "-H 'Cookie: NAME=VALUE'"),
    (
        &["--cookie-jar", "-c"],
        "relent keeps no cookies: -i shows those of a response",
    ),
    (
        &["--netrc", "-n", "--netrc-file", "--netrc-optional"],
        "-u USER:PASSWORD",
    ),
    (
        &["--retry-delay"],
        "--delay D waits the same time before each retry, --initial D a growing one",
    ),
    (&["--retry-max-time"], "--deadline D"),
    (
        &["--retry-all-errors"],
        "--retry-on any, and --repeatable for a request that is not",
    ),
    (
        &["--retry-connrefused"],
        "leave it out: a refused connection is retried anyway",
    ),
    (
        &["--fail-with-body"],
        "leave it out: the exit status is 22 and the body is printed anyway",
    ),
    (&["--fail-early"], "leave it out: there is one URL"),
    (&["--no-buffer", "-N"], "--stream"),
    (
        &["--location-trusted"],
        "credentials go to one origin only: fetch from the final URL",
    ),
    (&["--max-redirs"], "-L follows at most 10 redirects"),
    (
        &["--post301", "--post302", "--post303"],
        "-L follows these by GET; 307 and 308 keep the method",
    ),
    (
        &["--progress-bar", "-#"],
        "leave it out: there is a bar on a terminal",
    ),
    (&["--no-progress-meter"], "-s"),
    (&["--range", "-r"], "-H 'Range: bytes=0-99'"),
    (
        &["--speed-limit", "--speed-time", "-Y", "-y"],
        "--idle-timeout D",
    ),
    (&["--time-cond", "-z"], "-H 'If-Modified-Since: DATE'"),
    (&["--etag-compare"], "-H 'If-None-Match: TAG'"),
    (&["--create-dirs"], "mkdir -p DIR first"),
    (&["--output-dir"], "-o DIR/FILE"),
    (&["--remote-header-name", "-J"], "-o FILE"),
    (&["--remote-name-all"], "-O"),
    (&["--url"], "the URL stands by itself"),
    (
        &["--config", "-K"],
        "relent reads no file of options: write them on the command line, and a retry policy into a \
      file for --policy",
    ),
    (
        &["--path-as-is"],
        "relent has no such option: /../ in a path is resolved before the request, as the URL standard says",
    ),
    (
        &[
            "--http1.1",
            "--http1.0",
            "-0",
            "--http2",
            "--http2-prior-knowledge",
            "--http3",
        ],
        "leave it out: HTTP/2 is used where the server offers it over TLS, HTTP/1.1 elsewhere",
    ),
    (
        &["--globoff", "-g"],
        "leave it out: a URL is taken as it is written",
    ),
    (&["--proxy-user", "-U"], "-x http://USER:PASSWORD@HOST:PORT"),
    (
        &["--proxytunnel", "-p"],
        "leave it out: https:// goes through a tunnel anyway",
    ),
    (
        &["--socks5", "--socks5-hostname", "--socks4", "--socks4a"],
        "relent speaks to proxies of http:// and https://: -x",
    ),
    (&["--capath"], "SSL_CERT_DIR=DIR in the environment"),
    (
        &["--pass", "--cert-type", "--key-type"],
        "--cert and --key are PEM, the key without a password",
    ),
    (&["--dump-header", "-D"], "-i or -I"),
    (&["--trace-ascii"], "-v"),
    (&["--stderr"], "2> FILE"),
    (
        &["--ipv4", "-4", "--ipv6", "-6"],
        "leave it out: both are tried",
    ),
    (
        &["--tlsv1.2", "--tlsv1.3", "--tlsv1", "-1"],
        "leave it out: TLS 1.2 and 1.3 are spoken, no older",
    ),
    (&["--data-ascii"], "-d; a file is sent as it is"),
    (
        &["--form-string"],
        "-F; a value that begins with @ or < goes into a file first",
    ),
    (&["--basic"], "leave it out: -u is Basic"),
    (
        &["--oauth2-bearer", "--digest", "--negotiate", "--ntlm"],
        "-H 'Authorization: …'",
    ),
];

/// What to use in the place of this option of curl's, in a line.
pub(crate) fn instead(option: &str) -> Option<String> {
    // As in `--retry-delay=3`.
    let option = option.split('=').next().unwrap_or(option);
    let (_, use_this) = INSTEAD.iter().find(|(names, _)| names.contains(&option))?;
    Some(format!("{option} is curl's: {use_this}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn an_option_that_relent_has_needs_no_substitute() {
        let cli = crate::Cli::command();
        let fetch = cli.find_subcommand("fetch").unwrap();
        for (names, _) in INSTEAD {
            for name in names {
                let known = fetch.get_arguments().any(|arg| {
                    arg.get_long()
                        .is_some_and(|long| *name == format!("--{long}"))
                        || arg
                            .get_short()
                            .is_some_and(|short| *name == format!("-{short}"))
                });
                assert!(!known, "{name}");
            }
        }
        assert!(instead("--retry-delay=3").is_some());
        assert!(instead("--no-such").is_none());
    }
}
