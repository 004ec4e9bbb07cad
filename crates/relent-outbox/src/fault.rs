//! Local faults: problems of this process or machine, which hold messages without counting an attempt.
//!
//! A failed attempt is evidence about its receiver only if this process could make it. Otherwise the message stays due,
//! and its endpoint is held for up to [`LONGEST_WAIT`] before the next try; delivery resumes when the operator fixes
//! the fault. A fault that [concerns one message](FaultKind::is_of_message) holds only that message, for
//! [`LONGEST_WAIT`] at a time. Local faults never disable an endpoint.
//!
//! A process that has [many](is_able) in a row leaves its attempts to others.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest time between two tries while a fault lasts: 15 s.
pub const LONGEST_WAIT: Duration = Duration::from_secs(15);
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The number of local faults in a row after which a process is not able to make attempts. A few may be those of single
/// endpoints, such as an address of IPv6 on a machine without it.
const MANY_FAULTS: usize = 3;

/// The kind of a local fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FaultKind {
    /// A signing key is unavailable: its variable is not set, or it was encrypted with another key.
    SigningKey,
    /// This process cannot use the registration: its policy is unreadable, or its options forbid the URL.
    Registration,
    /// The process or the machine is out of file descriptors, memory or ports.
    Resources,
    /// No resolver responds, for any name.
    Resolver,
    /// This machine has no route to the address, or its firewall forbids it.
    Network,
    /// The message exceeds the size limit of the NATS server or of its stream. Only this message is held, not the
    /// others of the endpoint.
    TooLarge,
}

impl FaultKind {
    /// Each kind with its name in metrics and output.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::SigningKey, "signing-key"),
        (Self::Registration, "registration"),
        (Self::Resources, "resources"),
        (Self::Resolver, "resolver"),
        (Self::Network, "network"),
        (Self::TooLarge, "too-large"),
    ];

    /// The names in [`ALL`](Self::ALL).
    pub(crate) const NAMES: [&'static str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].1;
            at += 1;
        }
        names
    };

    /// The name in metrics and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(one, _)| *one == self)
            .map_or("", |(_, name)| name)
    }

    /// Whether the fault concerns a single message, so that others of its endpoint are sent.
    #[must_use]
    pub const fn is_of_message(self) -> bool {
        matches!(self, Self::TooLarge)
    }

    /// Whether the fault is one of the process or its machine, which may prevent all attempts.
    #[must_use]
    pub const fn is_of_machine(self) -> bool {
        matches!(self, Self::Resources | Self::Resolver | Self::Network)
    }

    /// Classifies a system error; `None` if the other side causes it, or may cause it.
    #[must_use]
    pub fn of_io(error: &io::Error) -> Option<Self> {
        // These numbers are equal on all supported Unix systems.
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        const ENOBUFS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };
        match error.kind() {
            io::ErrorKind::OutOfMemory => return Some(Self::Resources),
            io::ErrorKind::AddrNotAvailable => return Some(Self::Resources),
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
                return Some(Self::Network);
            }
            // An address guard's error has no system number.
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
                return Some(Self::Network);
            }
            _ => {}
        }
        let number = error.raw_os_error().filter(|_| cfg!(unix))?;
        matches!(number, ENFILE | EMFILE | ENOBUFS).then_some(Self::Resources)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A local fault with its description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalFault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The description of the fault and its remedy.
    pub error: String,
}

/// The wait before the next try, after the previous wait; `None` for the first: 1 s, doubled up to [`LONGEST_WAIT`].
#[must_use]
pub fn next_wait(before: Option<Duration>) -> Duration {
    before.map_or(FIRST_WAIT, |before| (2 * before).min(LONGEST_WAIT))
}

/// Whether a process is able to make attempts after this number of local faults in a row: below three. One that is not
/// leaves them to other processes, and tests at growing [intervals](next_wait) whether it is able again.
#[must_use]
pub const fn is_able(faults: usize) -> bool {
    faults < MANY_FAULTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_match_their_serialized_form() {
        for (kind, name) in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
            assert_eq!(kind.to_string(), name);
        }
    }

    #[test]
    fn only_errors_of_this_machine_count_as_local_faults() {
        let resources = Some(FaultKind::Resources);
        for kind in [io::ErrorKind::OutOfMemory, io::ErrorKind::AddrNotAvailable] {
            assert_eq!(FaultKind::of_io(&kind.into()), resources);
        }
        #[cfg(target_os = "linux")]
        for (number, fault) in [
            (24, resources),                 // EMFILE
            (23, resources),                 // ENFILE
            (12, resources),                 // ENOMEM
            (105, resources),                // ENOBUFS
            (99, resources),                 // EADDRNOTAVAIL
            (1, Some(FaultKind::Network)),   // EPERM
            (100, Some(FaultKind::Network)), // ENETDOWN
            (101, Some(FaultKind::Network)), // ENETUNREACH
            (111, None),                     // ECONNREFUSED
            (104, None),                     // ECONNRESET
            (110, None),                     // ETIMEDOUT
            (113, None),                     // EHOSTUNREACH
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(FaultKind::of_io(&error), fault, "{error}");
        }
        let guard = io::Error::new(io::ErrorKind::PermissionDenied, "a guard");
        assert_eq!(FaultKind::of_io(&guard), None);
    }

    #[test]
    fn the_waits_of_a_fault_double_up_to_their_limit() {
        let mut waits = Vec::new();
        let mut wait = None;
        for _ in 0..6 {
            let next = next_wait(wait);
            waits.push(next.as_secs());
            wait = Some(next);
        }
        assert_eq!(waits, [1, 2, 4, 8, 15, 15]);
    }
}
