//! Messages between processes: one per line.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};

use relent_sim::{Request, RequestOutcome};

use crate::clock::{Lag, Lateness};

/// An attempt that reached the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttemptRecord {
    /// Its time, in nanoseconds from the start.
    pub at: u64,
    /// The number of its request among those of the run.
    pub request: u64,
    /// The number of the attempt within its request, from 1, as its header states.
    pub attempt: u32,
    /// Whether it was served with effect.
    pub executed: bool,
}

/// A line from a process to its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The server listens at this address, or a client process is prepared.
    Ready(String),
    /// The request of this number has ended.
    Request(u64, RequestOutcome),
    /// An attempt reached the service.
    Attempt(AttemptRecord),
    /// Services that had an effect.
    Executions(u64),
    /// The lag of the process.
    Late(Lateness),
    /// The processor time that it took for the run, in nanoseconds.
    Used(u64),
    /// The number of attempts that ended in a way that the simulator does not have.
    Odd(u64, String),
    /// The last line.
    End,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(at) => write!(f, "ready {at}"),
            Self::Request(name, outcome) => {
                let Request { at, process } = outcome.request;
                let RequestOutcome {
                    attempts, ended, ..
                } = outcome;
                let succeeded = u8::from(outcome.succeeded);
                write!(
                    f,
                    "request {name} {at} {process} {attempts} {ended} {succeeded}"
                )
            }
            Self::Attempt(arrival) => {
                let AttemptRecord {
                    at,
                    request,
                    attempt,
                    ..
                } = arrival;
                let executed = u8::from(arrival.executed);
                write!(f, "attempt {at} {request} {attempt} {executed}")
            }
            Self::Executions(count) => write!(f, "executions {count}"),
            Self::Late(Lateness { loops, machine }) => write!(
                f,
                "late {} {} {} {}",
                loops.usual, loops.worst, machine.usual, machine.worst
            ),
            Self::Used(nanos) => write!(f, "used {nanos}"),
            Self::Odd(count, what) => write!(f, "odd {count} {what}"),
            Self::End => f.write_str("end"),
        }
    }
}

/// A line that cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a process said {:?}, which means nothing", self.0)
    }
}

impl FromStr for Message {
    type Err = Unreadable;

    fn from_str(line: &str) -> Result<Self, Unreadable> {
        let mut words = line.split_ascii_whitespace();
        read(&mut words).ok_or_else(|| Unreadable(line.to_owned()))
    }
}

fn read(words: &mut SplitAsciiWhitespace<'_>) -> Option<Message> {
    fn next<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
        words.next()?.parse().ok()
    }
    Some(match words.next()? {
        "ready" => Message::Ready(words.next().unwrap_or_default().to_owned()),
        "request" => Message::Request(
            next(words)?,
            RequestOutcome {
                request: Request {
                    at: next(words)?,
                    process: next(words)?,
                },
                attempts: next(words)?,
                ended: next(words)?,
                succeeded: next::<u8>(words)? == 1,
            },
        ),
        "attempt" => Message::Attempt(AttemptRecord {
            at: next(words)?,
            request: next(words)?,
            attempt: next(words)?,
            executed: next::<u8>(words)? == 1,
        }),
        "executions" => Message::Executions(next(words)?),
        "late" => {
            let mut lag = || {
                Some(Lag {
                    usual: next(words)?,
                    worst: next(words)?,
                })
            };
            Message::Late(Lateness {
                loops: lag()?,
                machine: lag()?,
            })
        }
        "used" => Message::Used(next(words)?),
        "odd" => Message::Odd(next(words)?, words.collect::<Vec<_>>().join(" ")),
        "end" => Message::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_messages_are_parsed_as_written() {
        let outcome = RequestOutcome {
            request: Request { at: 7, process: 3 },
            attempts: 2,
            ended: 900,
            succeeded: true,
        };
        let arrival = AttemptRecord {
            at: 12,
            request: 4,
            attempt: 2,
            executed: true,
        };
        let late = Lateness {
            loops: Lag { usual: 3, worst: 4 },
            machine: Lag { usual: 1, worst: 2 },
        };
        for said in [
            Message::Ready("127.0.0.1:80".to_owned()),
            Message::Request(8, outcome),
            Message::Attempt(arrival),
            Message::Executions(5),
            Message::Late(late),
            Message::Used(6),
            Message::Odd(4, "connection reset".to_owned()),
            Message::End,
        ] {
            assert_eq!(said.to_string().parse(), Ok(said));
        }
        assert!("request 1 2".parse::<Message>().is_err());
    }
}
