//! Which proxy a request goes through.
//!
//! reqwest takes a proxy of the environment that it cannot read for none, and the request goes out
//! directly, past the place that was to see or to protect it. Here that is an error.

use std::env::{VarError, var};
use std::fmt;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{ClientBuilder, Proxy, Url};

use super::request::shown;
use super::tunnels::{Explain, Tunnels};

/// The proxies for URLs of both schemes, and the hosts that need none.
#[derive(Clone, Default)]
pub(crate) struct Proxies {
    http: Option<Url>,
    https: Option<Url>,
    /// Hosts without a proxy, as `NO_PROXY` lists them.
    except: Option<Arc<Matcher>>,
    /// `*`.
    never: bool,
}

/// Without name and password.
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
    /// The proxy of `-x`, or those of the environment, with the exceptions of `--noproxy` or of the
    /// environment.
    ///
    /// # Errors
    /// What is no proxy, and who says it.
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
        // The first that is set counts, also if it is empty, which means none.
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
                // A request of a CGI program can set HTTP_PROXY by a header field `Proxy`.
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
            // One that takes everything but the exceptions.
            Arc::new(Matcher::builder().all("http://proxy").no(except).build())
        });
        Ok(Self {
            http,
            https,
            except,
            never,
        })
    }

    /// The proxy for this URL.
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

    /// Whether one of them is spoken to over TLS.
    pub(crate) fn any_over_tls(&self) -> bool {
        [&self.http, &self.https]
            .into_iter()
            .flatten()
            .any(|proxy| proxy.scheme() == "https")
    }

    /// What asks the proxy of https:// for tunnels, by a client from `builder`; `None` if there is no proxy.
    ///
    /// # Errors
    /// When the client cannot be built.
    pub(crate) fn tunnels(
        &self,
        builder: impl FnOnce() -> ClientBuilder,
    ) -> reqwest::Result<Option<Tunnels>> {
        let Some(proxy) = self.https.as_ref().filter(|_| !self.never) else {
            return Ok(None);
        };
        let builder = builder().no_proxy().proxy(Proxy::http(proxy.clone())?);
        Ok(Some(Tunnels::through(builder.build()?)))
    }

    /// Lets the client go this way and no other.
    pub(crate) fn apply(&self, builder: ClientBuilder, tunnels: Option<&Tunnels>) -> ClientBuilder {
        let builder = builder.no_proxy();
        if self.http.is_none() && self.https.is_none() || self.never {
            return builder;
        }
        let (proxies, tunnels) = (self.clone(), tunnels.cloned());
        let builder = builder.connector_layer(Explain);
        builder.proxy(Proxy::custom(move |url| {
            let proxy = proxies.of(url)?;
            let tunnels = tunnels.as_ref().filter(|_| url.scheme() == "https");
            let tunnel = tunnels.and_then(|tunnels| tunnels.to(url));
            Some(tunnel.unwrap_or_else(|| proxy.clone()))
        }))
    }
}

/// `host:port` of a proxy, or its URL.
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
    let url = Url::parse(&with_scheme).map_err(|error| wrong(&format!("no proxy: {error}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        scheme => Err(wrong(&format!(
            "no proxy that relent can speak to: {scheme}://"
        ))),
    }
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
    fn a_proxy_that_cannot_be_used_is_an_error_and_never_another_way_out() {
        for wrong in [
            "http://",
            "socks5://h:1",
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
    fn no_proxy_of_a_star_is_for_every_host() {
        let all = [("ALL_PROXY", "p:1"), ("NO_PROXY", "*")];
        let proxies = chosen(None, None, &all).unwrap();
        for url in ["http://a.example/", "https://127.0.0.1/", "http://[::1]/"] {
            assert_eq!(way(&proxies, url), None, "{url}");
        }
    }

    #[test]
    fn the_option_goes_before_the_environment_and_an_empty_one_is_none() {
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
