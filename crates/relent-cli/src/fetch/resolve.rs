//! `--resolve`: addresses for names, instead of a DNS lookup.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use reqwest::{ClientBuilder, Url};

/// The addresses of one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Resolve {
    host: String,
    port: u16,
    addresses: Vec<IpAddr>,
}

/// Parses `HOST:PORT:ADDRESS[,ADDRESS]…`.
///
/// # Errors
/// The text has another format.
pub(crate) fn parse(text: &str) -> Result<Resolve, String> {
    let form = "use HOST:PORT:ADDRESS, such as example.com:443:127.0.0.1";
    // In curl, entries with + expire, which makes no difference for one fetch.
    let entry = text.strip_prefix('+').unwrap_or(text);
    let (host, rest) = entry.split_once(':').ok_or(form)?;
    let (port, addresses) = rest.split_once(':').ok_or(form)?;
    if host.is_empty() || matches!(host, "*") || host.starts_with('-') {
        return Err(format!("{host:?} is not a host name: {form}"));
    }
    let port = port
        .parse()
        .map_err(|_| format!("{port:?} is not a port: {form}"))?;
    let addresses = addresses.split(',').map(|address| {
        let bare = address
            .strip_prefix('[')
            .and_then(|bare| bare.strip_suffix(']'));
        let parsed = bare.unwrap_or(address).parse();
        parsed.map_err(|_| format!("{address:?} is not an IP address: {form}"))
    });
    Ok(Resolve {
        host: host.to_ascii_lowercase(),
        port,
        addresses: addresses.collect::<Result<_, _>>()?,
    })
}

/// Returns the addresses for each name of a fetch of this URL. reqwest ignores the port here, so addresses for other
/// ports than the URL's apply to redirects only.
///
/// # Errors
/// A name other than that of the URL has different addresses at two ports.
pub(crate) fn choose(
    given: &[Resolve],
    url: &Url,
) -> Result<BTreeMap<String, Vec<SocketAddr>>, String> {
    let mut chosen: BTreeMap<String, (u16, Vec<SocketAddr>)> = BTreeMap::new();
    let first = url.host_str().zip(url.port_or_known_default());
    for Resolve {
        host,
        port,
        addresses,
    } in given
    {
        let is_first = |port| first == Some((host.as_str(), port));
        // Port 0 keeps the port of the URL.
        let addresses: Vec<SocketAddr> = addresses
            .iter()
            .map(|address| (*address, 0).into())
            .collect();
        match chosen.get(host) {
            Some((before, _)) if is_first(*before) && before != port => {}
            Some((before, others))
                if before != port && !is_first(*port) && *others != addresses =>
            {
                return Err(format!(
                    "--resolve: {host} has different addresses at {before} and {port}, and relent takes one for all \
                     ports"
                ));
            }
            // The last of two entries for the same port counts, as in curl.
            _ => {
                chosen.insert(host.clone(), (*port, addresses));
            }
        }
    }
    if let Some((host, port)) = first
        && let Some((at, _)) = chosen.get(host)
        && *at != port
        && !given
            .iter()
            .any(|entry| entry.host == host && entry.port == port)
    {
        return Err(format!(
            "--resolve: {host} is requested at port {port}, and the address is for port {at}"
        ));
    }
    let bare = chosen
        .into_iter()
        .map(|(host, (_, addresses))| (host, addresses));
    Ok(bare.collect())
}

/// Sets the addresses in the client.
pub(crate) fn apply(
    mut builder: ClientBuilder,
    chosen: &BTreeMap<String, Vec<SocketAddr>>,
) -> ClientBuilder {
    for (host, addresses) in chosen {
        builder = builder.resolve_to_addrs(host, addresses);
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(given: &[&str], url: &str) -> Result<Vec<(String, Vec<SocketAddr>)>, String> {
        let given: Vec<_> = given.iter().map(|text| parse(text).unwrap()).collect();
        choose(&given, &Url::parse(url).unwrap()).map(|chosen| chosen.into_iter().collect())
    }

    #[test]
    fn an_address_is_for_a_host_and_its_port() {
        let one = parse("Example.com:443:127.0.0.1,[::1],::2").unwrap();
        assert_eq!(
            (one.host.as_str(), one.port, one.addresses.len()),
            ("example.com", 443, 3)
        );
        assert_eq!(
            parse("+example.com:443:127.0.0.1,::1,::2").unwrap().host,
            "example.com"
        );
        for wrong in [
            "",
            "a",
            "a:1",
            "a:1:",
            "a:x:1.2.3.4",
            "a:1:b",
            ":1:1.2.3.4",
            "*:1:1.2.3.4",
            "-a:1",
            "a:99999:::1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let url = "http://a.example/";
        let host = |at: &str| {
            vec![(
                "a.example".to_owned(),
                vec![SocketAddr::new(at.parse().unwrap(), 0)],
            )]
        };
        assert_eq!(
            chosen(&["a.example:80:127.0.0.1"], url).unwrap(),
            host("127.0.0.1")
        );
        let both = ["a.example:443:127.0.0.2", "a.example:80:127.0.0.1"];
        assert_eq!(chosen(&both, url).unwrap(), host("127.0.0.1"));
        let both = ["a.example:80:127.0.0.1", "a.example:443:127.0.0.2"];
        assert_eq!(chosen(&both, url).unwrap(), host("127.0.0.1"));
        assert!(
            chosen(&both, "http://b.example/")
                .unwrap_err()
                .contains("different addresses")
        );
        assert!(
            chosen(&["a.example:443:127.0.0.1"], url)
                .unwrap_err()
                .contains("port 80")
        );
    }
}
