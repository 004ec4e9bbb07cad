//! Address guard against SSRF: decides which addresses messages may be sent to.
//!
//! The person who registers an endpoint chooses an address that a machine inside a private network calls. Only public
//! addresses are therefore called. Each address that a name resolves to is [checked](AddressGuard::check) for each
//! connection, and the connection goes to a checked address, not to the name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Decides which addresses may be called.
///
/// # Default
/// Public unicast addresses only. It refuses addresses that the special-purpose registries (IANA; RFC 6890 and its
/// successors) list as not globally reachable. It also refuses multicast, reserved and deprecated addresses (6to4, its
/// relays, site-local), IPv6 addresses that contain a refused IPv4 address (mapped, NAT64), and the metadata addresses
/// of clouds.
///
/// ```
/// use relent_outbox::guard::AddressGuard;
///
/// let guard = AddressGuard::new();
/// assert!(guard.check("93.184.215.14".parse()?).is_ok());
/// for inside in ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::ffff:127.0.0.1", "fd00:ec2::254"] {
///     assert!(guard.check(inside.parse()?).is_err(), "{inside}");
/// }
/// // A receiver in the operator's own network, allowed by the operator.
/// let guard = guard.allow("10.0.0.0/24".parse()?);
/// assert!(guard.check("10.0.0.7".parse()?).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    allowed: Vec<Network>,
}

impl AddressGuard {
    /// Creates a guard that allows only public addresses.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            allowed: Vec::new(),
        }
    }

    /// Allows these addresses, too: receivers in the operator's own network, or loopback in tests. Only the operator of
    /// the sender may decide this, never the person who registers an endpoint.
    #[must_use]
    pub fn allow(mut self, network: Network) -> Self {
        self.allowed.push(network);
        self
    }

    /// Checks that this address may be called.
    ///
    /// # Errors
    /// [`Forbidden`] with the reason.
    pub fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        let reason = match address {
            IpAddr::V4(v4) => reason_v4(v4),
            IpAddr::V6(v6) => reason_v6(v6),
        };
        match reason {
            None => Ok(()),
            // An IPv4-mapped address is the IPv4 address inside: allowing 10.0.0.0/8 allows ::ffff:10.0.0.1.
            Some(_) if self.allows(address) || self.allows(address.to_canonical()) => Ok(()),
            Some(reason) => Err(Forbidden { address, reason }),
        }
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.allowed.iter().any(|network| network.contains(address))
    }
}

/// Returns the kind of an IPv4 address that must not be called.
fn reason_v4(address: Ipv4Addr) -> Option<&'static str> {
    // Azure's metadata service has this otherwise public address.
    if address == Ipv4Addr::new(168, 63, 129, 16) {
        return Some("the metadata of a cloud");
    }
    find(&V4, u128::from(address.to_bits()), 32)
}

fn reason_v6(address: Ipv6Addr) -> Option<&'static str> {
    let bits = address.to_bits();
    let low = || Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).unwrap_or_default());
    if bits >> 32 == 0xffff {
        // IPv4-mapped: the connection is one of IPv4.
        return reason_v4(low());
    }
    if bits >> 32 == 0x0064_ff9b << 64 {
        // NAT64 (RFC 6052): a gateway calls the IPv4 address inside.
        return reason_v4(low());
    }
    if bits >> 125 != 0b001 {
        return Some(find(&V6_OUTSIDE, bits, 128).unwrap_or("no global unicast address"));
    }
    find(&V6, bits, 128)
}

type Row = (u128, u32, &'static str);

fn find(rows: &[Row], bits: u128, width: u32) -> Option<&'static str> {
    rows.iter()
        .find(|(prefix, length, _)| (bits ^ prefix) >> (width - length) == 0)
        .map(|(_, _, reason)| *reason)
}

const fn v4(a: u8, b: u8, c: u8) -> u128 {
    Ipv4Addr::new(a, b, c, 0).to_bits() as u128
}

/// IANA, IPv4 Special-Purpose Address Registry; RFC 5771 (multicast), RFC 1112 (reserved).
const V4: [Row; 17] = [
    (v4(0, 0, 0), 8, "this network"),
    (v4(10, 0, 0), 8, "private"),
    (v4(100, 64, 0), 10, "shared with a provider's customers"),
    (v4(127, 0, 0), 8, "the loopback"),
    (v4(169, 254, 0), 16, "link-local"),
    (v4(172, 16, 0), 12, "private"),
    (v4(192, 0, 0), 24, "reserved for protocols"),
    (v4(192, 0, 2), 24, "documentation"),
    (v4(192, 31, 196), 24, "a sink for reverse names"),
    (v4(192, 52, 193), 24, "a relay of multicast"),
    (v4(192, 88, 99), 24, "a relay of 6to4"),
    (v4(192, 168, 0), 16, "private"),
    (v4(192, 175, 48), 24, "a sink for reverse names"),
    (v4(198, 18, 0), 15, "for benchmarks"),
    (v4(198, 51, 100), 24, "documentation"),
    (v4(203, 0, 113), 24, "documentation"),
    // Multicast, reserved, and the broadcast address.
    (v4(224, 0, 0), 3, "multicast or reserved"),
];

const fn v6(a: u16, b: u16, c: u16) -> u128 {
    Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).to_bits()
}

/// Ranges outside of 2000::/3. All addresses there are refused; the table only gives the reason.
const V6_OUTSIDE: [Row; 7] = [
    (1, 128, "the loopback"),
    (
        0,
        96,
        "unspecified, or an IPv4 address in a form that is out of use",
    ),
    (v6(0x64, 0xff9b, 1), 48, "NAT64 of a private network"),
    (v6(0xfc00, 0, 0), 7, "private"),
    (v6(0xfe80, 0, 0), 10, "link-local"),
    (v6(0xfec0, 0, 0), 10, "site-local"),
    (v6(0xff00, 0, 0), 8, "multicast"),
];

/// IANA, IPv6 Special-Purpose Address Registry, within 2000::/3.
const V6: [Row; 5] = [
    // Teredo, ORCHID and others.
    (v6(0x2001, 0, 0), 23, "reserved for protocols"),
    (v6(0x2001, 0xdb8, 0), 32, "documentation"),
    // The address contains an IPv4 address, which a relay would call.
    (v6(0x2002, 0, 0), 16, "6to4"),
    (v6(0x2620, 0x4f, 0x8000), 48, "a sink for reverse names"),
    (v6(0x3fff, 0, 0), 20, "documentation"),
];

/// The error for an address that must not be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forbidden {
    /// The address.
    pub address: IpAddr,
    /// The kind of address.
    pub reason: &'static str,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, reason } = self;
        write!(
            f,
            "{address} is not called: it is {reason}, and an endpoint has to be at a public address; if it is the \
             operator's own, allow its network"
        )
    }
}

impl std::error::Error for Forbidden {}

/// Addresses with a common prefix, written `10.0.0.0/24`, `fd00::/8`, or as a single address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    length: u32,
}

impl Network {
    /// Whether the network contains this address. An IPv6 network contains no IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (differing, width) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits() ^ other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits() ^ other.to_bits(), 128),
            _ => return false,
        };
        // A length of 0 compares nothing.
        differing.checked_shr(width - self.length).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| InvalidNetwork)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => width,
            Some(text) => text
                .parse()
                .ok()
                .filter(|length| *length <= width && text.bytes().all(|b| b.is_ascii_digit()))
                .ok_or(InvalidNetwork)?,
        };
        Ok(Self { address, length })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The error for a text that is not a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidNetwork;

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a network is an address and the length of its prefix, such as 10.0.0.0/24 or fd00::/8",
        )
    }
}

impl std::error::Error for InvalidNetwork {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> Option<&'static str> {
        AddressGuard::new()
            .check(text.parse().unwrap())
            .err()
            .map(|forbidden| forbidden.reason)
    }

    #[test]
    fn public_addresses_are_called() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "93.184.215.14",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "168.63.129.15",
            "168.63.129.17",
            "2606:4700:4700::1111",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
        ] {
            assert_eq!(reason(address), None, "{address}");
        }
    }

    #[test]
    fn private_addresses_are_refused_in_any_form() {
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.192",
            "192.0.2.1",
            "192.31.196.1",
            "192.52.193.1",
            "192.88.99.1",
            "192.168.0.0",
            "192.168.255.255",
            "192.175.48.1",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
        ] {
            let v4: Ipv4Addr = address.parse().unwrap();
            assert!(reason(address).is_some(), "{address}");
            let nat64 = Ipv6Addr::from_bits(0x0064_ff9b << 96 | u128::from(v4.to_bits()));
            let six_to_four = Ipv6Addr::from_bits(0x2002 << 112 | u128::from(v4.to_bits()) << 80);
            for form in [
                v4.to_ipv6_mapped(),
                v4.to_ipv6_compatible(),
                nat64,
                six_to_four,
            ] {
                assert!(reason(&form.to_string()).is_some(), "{form} of {address}");
            }
        }
        for address in [
            "::",
            "::1",
            "::2",
            "64:ff9b:1::1",
            "100::1",
            "100:0:0:1::1",
            "1000::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:20::1",
            "2001:1ff:ffff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "2620:4f:8000::1",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fdff:ffff::1",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "febf::1",
            "fec0::1",
            "feff::1",
            "ff02::1",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "::ffff:0:127.0.0.1",
        ] {
            assert!(reason(address).is_some(), "{address}");
        }
    }

    #[test]
    fn a_refused_address_is_named_with_its_kind() {
        assert_eq!(reason("::1"), Some("the loopback"));
        assert_eq!(reason("::"), reason("::7f00:1"));
        assert_eq!(reason("::ffff:10.1.2.3"), Some("private"));
        let forbidden = AddressGuard::new()
            .check("169.254.169.254".parse().unwrap())
            .unwrap_err();
        assert!(
            forbidden
                .to_string()
                .starts_with("169.254.169.254 is not called: it is link-local")
        );
    }

    #[test]
    fn addresses_allowed_by_the_operator_pass_in_either_form() {
        let guard = AddressGuard::new()
            .allow("127.0.0.0/8".parse().unwrap())
            .allow("fd00::/8".parse().unwrap());
        for (address, passes) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("::1", false),
            ("10.0.0.1", false),
            ("fd12::1", true),
            ("fc00::1", false),
        ] {
            assert_eq!(
                guard.check(address.parse().unwrap()).is_ok(),
                passes,
                "{address}"
            );
        }
    }

    #[test]
    fn network_prefixes_are_parsed_and_formatted() {
        for (text, written) in [
            ("10.0.0.0/24", "10.0.0.0/24"),
            ("10.0.0.1", "10.0.0.1/32"),
            ("::/0", "::/0"),
            ("fd00::/8", "fd00::/8"),
        ] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), written);
        }
        for text in [
            "",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10/8",
            "10.0.0.0/",
            "a/8",
        ] {
            assert_eq!(text.parse::<Network>(), Err(InvalidNetwork), "{text:?}");
        }
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        assert!(!all.contains("::1".parse().unwrap()));
    }
}
