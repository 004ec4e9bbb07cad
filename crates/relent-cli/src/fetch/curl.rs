//! curl options that `relent fetch` does not have, with their replacements.

/// The replacements for options of curl.
const REPLACEMENTS: &[(&[&str], &str)] = &[
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
        "--delay D for a constant delay, --initial D for a growing one",
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
        "write the options on the command line, and a retry policy into a \
      file for --policy",
    ),
    (
        &["--path-as-is"],
        "/../ in a path is resolved before the request, as the URL standard says",
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
    (&["--socks5"], "-x socks5://HOST:PORT"),
    (&["--socks5-hostname"], "-x socks5h://HOST:PORT"),
    (&["--socks4"], "-x socks4://HOST:PORT"),
    (&["--socks4a"], "-x socks4a://HOST:PORT"),
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
    (
        &[
            "--next",
            "-:",
            "--parallel",
            "-Z",
            "--parallel-immediate",
            "--parallel-max",
            "--rate",
        ],
        "run it once per URL, for example under xargs -P 4 -n 1",
    ),
    (&["--connect-to"], "--resolve HOST:PORT:ADDRESS"),
    (
        &["--url-query"],
        "-G --data-urlencode NAME=TEXT, or write it into the URL",
    ),
    (
        &["--remove-on-error"],
        "leave it out: -o FILE appears when the response is complete",
    ),
    (&["--no-clobber"], "test -e FILE || relent fetch …"),
    (
        &["--etag-save"],
        "-i shows the ETag, and -H 'If-None-Match: ETAG' sends it",
    ),
    (&["--disable"], "leave it out: relent reads no .curlrc"),
    (
        &[
            "--tcp-nodelay",
            "--false-start",
            "--styled-output",
            "--trace-time",
            "--compressed-ssh",
            "--no-npn",
            "--junk-session-cookies",
            "-j",
            "--anyauth",
            "--proxy-anyauth",
        ],
        "leave it out",
    ),
    (
        &["--expect100-timeout"],
        "leave it out: relent sends no Expect: 100-continue",
    ),
    (
        &[
            "--happy-eyeballs-timeout-ms",
            "--no-keepalive",
            "--keepalive-time",
            "--no-alpn",
            "--no-sessionid",
            "--suppress-connect-headers",
        ],
        "leave it out: relent decides that itself",
    ),
    (
        &[
            "--ciphers",
            "--curves",
            "--tls13-ciphers",
            "--tlsv1.0",
            "--tlsv1.1",
            "--tls-max",
            "--sslv2",
            "-2",
            "--sslv3",
            "-3",
            "--ssl",
            "--ssl-reqd",
            "--proxy-tlsv1",
        ],
        "leave it out: TLS 1.2 and 1.3 are spoken, with rustls' ciphers",
    ),
    (
        &["--proto", "--proto-default", "--proto-redir"],
        "leave it out: only http:// and https:// are spoken",
    ),
    (
        &["--http0.9", "--http3-only"],
        "relent speaks HTTP/1.1 and HTTP/2",
    ),
    (
        &["--proxy1.0", "--proxy-basic", "--socks5-basic"],
        "-x with a user name and password in the URL",
    ),
    (
        &[
            "--proxy-digest",
            "--proxy-negotiate",
            "--proxy-ntlm",
            "--ntlm-wb",
        ],
        "relent authenticates by Basic: -x http://USER:PASSWORD@HOST:PORT",
    ),
    (
        &["--proxy-cacert", "--proxy-capath"],
        "--cacert FILE is for servers and proxies",
    ),
    (
        &["--proxy-insecure"],
        "--cacert FILE with the certificate of the proxy",
    ),
    (&["--manual", "-M"], "relent fetch --help"),
    (&["--version", "-V"], "relent --version"),
];

/// The other options of curl 7.88, for which relent has no replacement.
const WITHOUT_REPLACEMENT: &[&str] = &[
    "--abstract-unix-socket",
    "--alt-svc",
    "--append",
    "-a",
    "--aws-sigv4",
    "--cert-status",
    "--create-file-mode",
    "--crlf",
    "--crlfile",
    "--delegation",
    "--disable-eprt",
    "--disable-epsv",
    "--disallow-username-in-url",
    "--dns-interface",
    "--dns-ipv4-addr",
    "--dns-ipv6-addr",
    "--dns-servers",
    "--doh-cert-status",
    "--doh-insecure",
    "--doh-url",
    "--egd-file",
    "--engine",
    "--form-escape",
    "--ftp-account",
    "--ftp-alternative-to-user",
    "--ftp-create-dirs",
    "--ftp-method",
    "--ftp-pasv",
    "--ftp-port",
    "-P",
    "--ftp-pret",
    "--ftp-skip-pasv-ip",
    "--ftp-ssl-ccc",
    "--ftp-ssl-ccc-mode",
    "--ftp-ssl-control",
    "--haproxy-protocol",
    "--hostpubmd5",
    "--hostpubsha256",
    "--hsts",
    "--ignore-content-length",
    "--interface",
    "--krb",
    "--libcurl",
    "--list-only",
    "-l",
    "--local-port",
    "--login-options",
    "--mail-auth",
    "--mail-from",
    "--mail-rcpt",
    "--mail-rcpt-allowfails",
    "--metalink",
    "--pinnedpubkey",
    "--preproxy",
    "--proxy-cert",
    "--proxy-cert-type",
    "--proxy-ciphers",
    "--proxy-key",
    "--proxy-key-type",
    "--proxy-pass",
    "--proxy-crlfile",
    "--proxy-header",
    "--proxy-pinnedpubkey",
    "--proxy-service-name",
    "--proxy-ssl-allow-beast",
    "--proxy-ssl-auto-client-cert",
    "--proxy-tls13-ciphers",
    "--proxy-tlsauthtype",
    "--proxy-tlspassword",
    "--proxy-tlsuser",
    "--pubkey",
    "--quote",
    "-Q",
    "--random-file",
    "--raw",
    "--request-target",
    "--sasl-authzid",
    "--sasl-ir",
    "--service-name",
    "--socks5-gssapi",
    "--socks5-gssapi-nec",
    "--socks5-gssapi-service",
    "--ssl-allow-beast",
    "--ssl-auto-client-cert",
    "--ssl-no-revoke",
    "--ssl-revoke-best-effort",
    "--tcp-fastopen",
    "--telnet-option",
    "-t",
    "--tftp-blksize",
    "--tftp-no-options",
    "--tlsauthtype",
    "--tlspassword",
    "--tlsuser",
    "--tr-encoding",
    "--use-ascii",
    "-B",
    "--xattr",
];

/// Explains in one line how to replace an option of curl.
pub(crate) fn replacement_for(option: &str) -> Option<String> {
    let found = REPLACEMENTS
        .iter()
        .find(|(names, _)| names.contains(&option));
    let nothing = WITHOUT_REPLACEMENT
        .contains(&option)
        .then_some("there is no replacement");
    let use_this = found.map(|(_, use_this)| *use_this).or(nothing)?;
    Some(format!("fetch has no {option}: {use_this}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_curl_replacement_names_an_option_that_relent_has() {
        let cli = crate::Cli::command();
        let fetch = cli.find_subcommand("fetch").unwrap();
        let replaced = REPLACEMENTS.iter().flat_map(|(names, _)| *names);
        for name in replaced.chain(WITHOUT_REPLACEMENT) {
            let known = fetch.get_arguments().any(|arg| {
                arg.get_long()
                    .is_some_and(|long| *name == format!("--{long}"))
                    || arg
                        .get_short()
                        .is_some_and(|short| *name == format!("-{short}"))
            });
            assert!(!known, "{name}");
        }
        assert!(replacement_for("--retry-delay").is_some());
        assert!(
            replacement_for("--interface")
                .is_some_and(|text| text.ends_with("there is no replacement"))
        );
        assert!(replacement_for("--no-such").is_none());
    }
}
