//! The choice of the proxy for a request.
//!
//! reqwest ignores an invalid proxy in the environment, and sends the request directly, around the proxy that should
//! inspect or protect it. Here an invalid proxy is an error.

use std::env::{VarError, var};
use std::fmt;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;
use reqwest::{ClientBuilder, Proxy, Url};

use super::request::shown;
use super::tunnels::{TunnelErrorLayer, Tunnels};

/// The proxies for URLs of both schemes, and the hosts without a proxy.
#[derive(Clone, Default)]
pub(crate) struct Proxies {
    http: Option<Url>,
    https: Option<Url>,
    /// Hosts without a proxy, as `NO_PROXY` lists them.
    except: Option<Arc<Matcher>>,
    /// Whether `NO_PROXY` contains `*`: no host has a proxy.
    never: bool,
}

/// Shows the proxies without user and password.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<Url>| url.as_ref().map(|url| shown(url.as_str()));
        f.debug_struct("Proxies")
            .field("http", &shown(&self.http))
            .field("https", &shown(&self.https))
            .finish_non_exhaustive()
    }
}

impl Proxies {
    /// Chooses the proxy of `-x` or those of the environment, with the exceptions of `--noproxy` or of the
    /// environment.
    ///
    /// # Errors
    /// A proxy is invalid; the message names the option or the variable.
    pub(crate) fn choose(given: Option<&str>, noproxy: Option<&str>) -> Result<Self, String> {
        Self::choose_in(given, noproxy, |name| match var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(format!("{name} in the environment is not text")),
        })
    }

    fn choose_in(
        given: Option<&str>,
        noproxy: Option<&str>,
        environment: impl Fn(&str) -> Result<Option<String>, String>,
    ) -> Result<Self, String> {
        // The first variable that is set counts, also if it is empty, which means no proxy.
        let first = |names: &[&str]| -> Result<Option<(String, String)>, String> {
            for name in names {
                if let Some(value) = environment(name)? {
                    return Ok(Some(((*name).to_owned(), value)));
                }
            }
            Ok(None)
        };
        let named = |found: Option<(String, String)>| match found {
            Some((_, value)) if value.trim().is_empty() => Ok(Some(None)),
            Some((name, value)) => parse(value.trim())
                .map(|url| Some(Some(url)))
                .map_err(|error| format!("{name} in the environment: {error}")),
            None => Ok(None),
        };
        let (http, https) = match given.map(str::trim) {
            Some("") => (None, None),
            Some(given) => {
                let url = parse(given).map_err(|error| format!("-x {error}"))?;
                (Some(url.clone()), Some(url))
            }
            None => {
                // In a CGI program, a client can set HTTP_PROXY with a header field `Proxy`.
                let http: &[&str] = match environment("REQUEST_METHOD")? {
                    Some(_) => &["http_proxy"],
                    None => &["http_proxy", "HTTP_PROXY"],
                };
                let all = named(first(&["all_proxy", "ALL_PROXY"])?)?.flatten();
                let http = named(first(http)?)?.unwrap_or_else(|| all.clone());
                let https = named(first(&["https_proxy", "HTTPS_PROXY"])?)?.unwrap_or(all);
                (http, https)
            }
        };
        let except = match noproxy {
            Some(list) => list.to_owned(),
            None => first(&["no_proxy", "NO_PROXY"])?.map_or_else(String::new, |(_, list)| list),
        };
        let never = except.split(',').any(|entry| entry.trim() == "*");
        let except = (!except.trim().is_empty()).then(|| {
            // A matcher for everything except these hosts.
            Arc::new(Matcher::builder().all("http://proxy").no(except).build())
        });
        Ok(Self {
            http,
            https,
            except,
            never,
        })
    }

    /// Returns the proxy for this URL.
    pub(crate) fn of(&self, url: &Url) -> Option<&Url> {
        let proxy = match url.scheme() {
            "http" => self.http.as_ref(),
            _ => self.https.as_ref(),
        }?;
        let excepted = self.except.as_ref().is_some_and(|except| {
            let uri = url.as_str().parse();
            uri.is_ok_and(|uri| except.intercept(&uri).is_none())
        });
        (!self.never && !excepted).then_some(proxy)
    }

    /// Whether the connection to one of the proxies uses TLS.
    pub(crate) fn any_over_tls(&self) -> bool {
        [&self.http, &self.https]
            .into_iter()
            .flatten()
            .any(|proxy| proxy.scheme() == "https")
    }

    /// Returns the tunnels through the proxy for https://, with a client from `builder`; `None` without such a proxy.
    ///
    /// # Errors
    /// The client cannot be built.
    pub(crate) fn tunnels(
        &self,
        builder: impl FnOnce() -> ClientBuilder,
    ) -> reqwest::Result<Option<Tunnels>> {
        // A SOCKS proxy needs no tunnel: it connects to any host, and reqwest keeps its reply in the error.
        let through = |proxy: &&Url| !self.never && !is_socks(proxy);
        let Some(proxy) = self.https.as_ref().filter(through) else {
            return Ok(None);
        };
        let builder = builder().no_proxy().proxy(Proxy::http(proxy.clone())?);
        Ok(Some(Tunnels::through(builder.build()?)))
    }

    /// Makes the client use these proxies and no others.
    pub(crate) fn apply(&self, builder: ClientBuilder, tunnels: Option<&Tunnels>) -> ClientBuilder {
        let builder = builder.no_proxy();
        if self.http.is_none() && self.https.is_none() || self.never {
            return builder;
        }
        let (proxies, tunnels) = (self.clone(), tunnels.cloned());
        let builder = builder.connector_layer(TunnelErrorLayer);
        builder.proxy(Proxy::custom(move |url| {
            let proxy = proxies.of(url)?;
            let tunnels = tunnels.as_ref().filter(|_| url.scheme() == "https");
            let tunnel = tunnels.and_then(|tunnels| tunnels.to(url));
            Some(tunnel.unwrap_or_else(|| proxy.clone()))
        }))
    }
}

/// Whether a proxy speaks SOCKS.
pub(crate) fn is_socks(proxy: &Url) -> bool {
    proxy.scheme().starts_with("socks")
}

/// The default port of SOCKS.
const SOCKS: u16 = 1080;
/// The most bytes of a user name or password in SOCKS5.
const MAX_SOCKS_CREDENTIAL_BYTES: usize = 255;

/// Parses `host:port` of a proxy, or its URL.
fn parse(text: &str) -> Result<Url, String> {
    let wrong = |what: &str| {
        format!(
            "{}: {what}: a proxy is written as http://HOST:PORT",
            shown(text)
        )
    };
    let with_scheme = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let mut url = Url::parse(&with_scheme).map_err(|error| wrong(&format!("no proxy: {error}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        "socks4" | "socks4a" | "socks5" | "socks5h" => {
            if url.host_str().is_none_or(str::is_empty) {
                return Err(wrong("no proxy: no host"));
            }
            let (user, password) = (url.username(), url.password().unwrap_or_default());
            if url.scheme().starts_with("socks4") && !user.is_empty() {
                return Err(wrong("relent sends no user to a SOCKS4 proxy: use socks5"));
            }
            if decoded(user) > MAX_SOCKS_CREDENTIAL_BYTES
                || decoded(password) > MAX_SOCKS_CREDENTIAL_BYTES
            {
                return Err(wrong(
                    "a user name or password of SOCKS5 has at most 255 bytes",
                ));
            }
            if url.port().is_none() && url.set_port(Some(SOCKS)).is_err() {
                return Err(wrong("no proxy: no port"));
            }
            Ok(url)
        }
        scheme => Err(wrong(&format!("unsupported scheme {scheme}://"))),
    }
}

/// The length of a decoded part of a URL, in bytes.
fn decoded(part: &str) -> usize {
    percent_decode_str(part).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        given: Option<&str>,
        noproxy: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Result<Proxies, String> {
        Proxies::choose_in(given, noproxy, |name| {
            let found = environment.iter().find(|(set, _)| *set == name);
            Ok(found.map(|(_, value)| (*value).to_owned()))
        })
    }

    fn way(proxies: &Proxies, url: &str) -> Option<String> {
        let proxy = proxies.of(&Url::parse(url).unwrap());
        proxy.map(|proxy| proxy.host_str().unwrap().to_owned())
    }

    #[test]
    fn an_invalid_proxy_is_an_error_and_never_bypassed() {
        for wrong in [
            "http://",
            "socks5://",
            "socks5:///x",
            "socks5://h:port",
            "socks4://user:hunter2@h:1",
            "socks6://h:1",
            "ftp://h",
            "http://h:port",
            "http://user:hunter2@h:99999",
            "a b",
        ] {
            for name in [
                "http_proxy",
                "HTTP_PROXY",
                "https_proxy",
                "HTTPS_PROXY",
                "ALL_PROXY",
            ] {
                let error = chosen(None, None, &[(name, wrong)]).unwrap_err();
                assert!(error.contains(name), "{error}");
                assert!(!error.contains("hunter2"), "{error}");
            }
            assert!(
                chosen(Some(wrong), None, &[])
                    .unwrap_err()
                    .starts_with("-x ")
            );
        }
    }

    #[test]
    fn a_socks_proxy_listens_at_1080_unless_a_port_is_named() {
        for (given, port) in [
            ("socks5://h", 1080),
            ("socks5h://u:p@h", 1080),
            ("socks4a://h:9", 9),
        ] {
            let proxies = chosen(Some(given), None, &[]).unwrap();
            let proxy = proxies.of(&Url::parse("http://a/").unwrap()).unwrap();
            assert_eq!(proxy.port(), Some(port), "{given}");
        }
        let long = format!("socks5://{}:hunter2@h", "u".repeat(256));
        let error = chosen(Some(&long), None, &[]).unwrap_err();
        assert!(
            error.contains("255") && !error.contains("hunter2"),
            "{error}"
        );
    }

    #[test]
    fn no_proxy_star_matches_every_host() {
        let all = [("ALL_PROXY", "p:1"), ("NO_PROXY", "*")];
        let proxies = chosen(None, None, &all).unwrap();
        for url in ["http://a.example/", "https://127.0.0.1/", "http://[::1]/"] {
            assert_eq!(way(&proxies, url), None, "{url}");
        }
    }

    #[test]
    fn proxy_options_override_the_environment_and_empty_means_none() {
        let environment = [
            ("http_proxy", "lower"),
            ("HTTP_PROXY", "upper"),
            ("ALL_PROXY", "http://all:3128"),
            ("no_proxy", "example.com, 10.0.0.0/8"),
        ];
        let proxies = chosen(None, None, &environment).unwrap();
        assert_eq!(way(&proxies, "http://a/").as_deref(), Some("lower"));
        assert_eq!(way(&proxies, "https://a/").as_deref(), Some("all"));
        assert_eq!(way(&proxies, "https://www.example.com/"), None);
        assert_eq!(way(&proxies, "https://10.1.2.3/"), None);
        let proxies = chosen(Some("mine:1"), Some("a"), &environment).unwrap();
        assert_eq!(way(&proxies, "https://10.1.2.3/").as_deref(), Some("mine"));
        assert_eq!(way(&proxies, "https://a/"), None);
        let proxies = chosen(Some(""), None, &environment).unwrap();
        assert_eq!(way(&proxies, "https://a/"), None);
        let cgi = [("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "evil")];
        assert_eq!(way(&chosen(None, None, &cgi).unwrap(), "http://a/"), None);
    }
}
