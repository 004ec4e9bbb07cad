//! Model checking of two executions of one key: every interleaving, with expiring leases, crashes,
//! lost replies, expiring records, and a resolver of unknown outcomes.

mod resolve;

extern crate std;

use core::time::Duration;
use std::collections::HashSet;
use std::vec::Vec;

use super::*;

const FINGERPRINT: Fingerprint = Fingerprint([1; 32]);
const OTHER_FINGERPRINT: Fingerprint = Fingerprint([2; 32]);

fn at(second: u64) -> Instant {
    Instant::ORIGIN.saturating_add(Duration::from_secs(second))
}

fn config(takeover: Takeover) -> ClaimConfig {
    ClaimConfig {
        lease: Duration::from_secs(2),
        retention: Duration::from_secs(3),
        takeover,
    }
}

/// A process that handles the request, or one of its retries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Process {
    Idle,
    Runs {
        lease: Lease,
        /// The life of the key in which the lease was granted. A new life begins when the record
        /// has expired.
        life: u8,
        acted: bool,
        /// Its renewal returned "lost", so it stops.
        lost: bool,
    },
}

/// How effects and record are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effects {
    /// One after the other: the effect, then the record.
    Separate,
    /// In one transaction, which is rolled back if the lease is lost.
    Transaction,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    now: u64,
    stored: Option<Record>,
    processes: [Process; 2],
    owners: u128,
    life: u8,
    /// The number of effects in each life of the key, and whether a success was recorded in it.
    effects: [u8; 3],
    answered: [bool; 3],
    highest_fence: u64,
    /// The record that the resolver found unknown, and whether there was an effect at that time.
    asked: Option<(Record, bool)>,
    asks: u8,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Claim,
    Act,
    Complete,
    /// Written, but the reply is lost: the process writes it again.
    CompleteTwice,
    Release,
    GiveUp,
    Renew,
    Crash,
}

const ACTIONS: [Action; 8] = [
    Action::Claim,
    Action::Act,
    Action::Complete,
    Action::CompleteTwice,
    Action::Release,
    Action::GiveUp,
    Action::Renew,
    Action::Crash,
];

struct Model {
    config: ClaimConfig,
    effects: Effects,
    /// Whether the resolver may look at an execution that can still act.
    resolves_early: bool,
}

impl Model {
    /// The world after the action of this process; `None` if the action is not possible.
    fn step(&self, before: &World, index: usize, action: Action) -> Option<World> {
        let mut world = before.clone();
        let now = at(world.now);
        let process = world.processes[index];
        match (process, action) {
            (Process::Idle, Action::Claim) => {
                world.owners += 1;
                let owner = world.owners;
                let expired = world.stored.is_some_and(|record| record.is_expired(now));
                let stored = world.stored.as_ref();
                let (claim, write) = Record::claim(stored, now, &self.config, owner, FINGERPRINT);
                // The reply may be lost: a second call changes nothing.
                if let Some(record) = write {
                    let (again, change) =
                        Record::claim(Some(&record), now, &self.config, owner, FINGERPRINT);
                    assert_eq!((again, change), (claim, None), "{world:?}");
                }
                world.stored = write.or(world.stored);
                match claim {
                    Claim::Run {
                        lease, repeated, ..
                    } => {
                        if expired {
                            world.life += 1;
                            world.highest_fence = 0;
                        }
                        assert!(lease.fence > world.highest_fence, "{before:?}");
                        world.highest_fence = lease.fence;
                        let acted = world.effects[usize::from(world.life)] > 0;
                        assert!(!acted || repeated, "not said to be repeated: {before:?}");
                        let refuses = self.config.takeover == Takeover::Refuse;
                        assert!(!(refuses && repeated), "{before:?}");
                        world.processes[index] = Process::Runs {
                            lease,
                            life: world.life,
                            acted: false,
                            lost: false,
                        };
                    }
                    Claim::Replay => assert!(world.answered[usize::from(world.life)], "{before:?}"),
                    Claim::InFlight { until } => assert!(now < until),
                    Claim::Unknown => assert_eq!(self.config.takeover, Takeover::Refuse),
                    Claim::Mismatch => panic!("the fingerprint is the same: {before:?}"),
                }
                let (claim, write) = Record::claim(
                    world.stored.as_ref(),
                    now,
                    &self.config,
                    0,
                    OTHER_FINGERPRINT,
                );
                let runs = matches!(claim, Claim::Run { .. });
                assert!(runs == write.is_some() && (runs || claim == Claim::Mismatch));
            }
            (Process::Runs { .. }, Action::Crash) => world.processes[index] = Process::Idle,
            (Process::Runs { lost: true, .. }, _) => return None,
            (
                Process::Runs {
                    lease,
                    life,
                    acted: false,
                    lost,
                },
                Action::Act,
            ) if self.effects == Effects::Separate => {
                world.effects[usize::from(life)] += 1;
                world.processes[index] = Process::Runs {
                    lease,
                    life,
                    acted: true,
                    lost,
                };
            }
            (
                Process::Runs {
                    lease,
                    life,
                    acted,
                    lost: _,
                },
                _,
            ) => {
                let transaction = self.effects == Effects::Transaction;
                let Some(record) = world.stored else {
                    panic!("only what is expired is removed: {before:?}");
                };
                let ended = match action {
                    Action::Complete | Action::CompleteTwice if acted || transaction => {
                        record.complete(now, &lease, &self.config)
                    }
                    Action::Release if !acted => record.release(now, &lease, &self.config),
                    Action::GiveUp => record.give_up(now, &lease, &self.config),
                    Action::Renew => match record.renew(now, &lease, &self.config) {
                        Ok((record, lease)) => {
                            assert_eq!(lease.fence, world.highest_fence, "{before:?}");
                            world.stored = Some(record);
                            world.processes[index] = Process::Runs {
                                lease,
                                life,
                                acted,
                                lost: false,
                            };
                            return Some(world);
                        }
                        Err(lost) => Err(lost),
                    },
                    _ => return None,
                };
                match ended {
                    Ok(record) => {
                        world.stored = Some(record);
                        world.processes[index] = Process::Idle;
                        assert!(
                            lease.fence == world.highest_fence && life == world.life,
                            "{before:?}"
                        );
                        if matches!(action, Action::Complete | Action::CompleteTwice) {
                            world.answered[usize::from(life)] = true;
                            world.effects[usize::from(life)] += u8::from(transaction);
                        }
                        if let Action::CompleteTwice = action {
                            assert_eq!(record.complete(now, &lease, &self.config), Ok(record));
                        }
                    }
                    Err(LeaseLost) => {
                        world.processes[index] = Process::Runs {
                            lease,
                            life,
                            acted,
                            lost: true,
                        };
                    }
                }
            }
            _ => return None,
        }
        Some(world)
    }

    /// Explores all possible worlds until this second, and checks `holds` in each.
    fn explore(&self, until: u64, holds: impl Fn(&World) -> bool) -> usize {
        let first = World {
            now: 0,
            stored: None,
            processes: [Process::Idle; 2],
            owners: 0,
            life: 0,
            effects: [0; 3],
            answered: [false; 3],
            highest_fence: 0,
            asked: None,
            asks: 0,
        };
        let mut seen = HashSet::new();
        let mut left = Vec::from([first]);
        while let Some(world) = left.pop() {
            assert!(holds(&world), "{world:#?}");
            let mut next = Vec::new();
            if world.now < until {
                let mut later = world.clone();
                later.now += 1;
                next.push(later);
            }
            for (index, action) in [0, 1]
                .into_iter()
                .flat_map(|index| ACTIONS.map(|a| (index, a)))
            {
                // A bound, so that the exploration ends.
                if world.owners < 5 {
                    next.extend(self.step(&world, index, action));
                }
            }
            next.extend(self.ask(&world));
            next.extend(self.resolve(&world));
            for world in next {
                if seen.insert(world.clone()) {
                    left.push(world);
                }
            }
        }
        seen.len()
    }
}

#[test]
fn with_takeover_refuse_two_executions_never_both_act() {
    let model = Model {
        config: config(Takeover::Refuse),
        effects: Effects::Separate,
        resolves_early: false,
    };
    let worlds = model.explore(6, |world| world.effects.iter().all(|&effects| effects <= 1));
    assert!(worlds > 1000, "{worlds}");
}

#[test]
fn with_a_transaction_effects_and_answers_match_after_any_takeover() {
    for takeover in [Takeover::Refuse, Takeover::Rerun, Takeover::Resume] {
        let model = Model {
            config: config(takeover),
            effects: Effects::Transaction,
            resolves_early: true,
        };
        let worlds = model.explore(6, |world| {
            let lives = world.effects.iter().zip(&world.answered);
            lives
                .into_iter()
                .all(|(&effects, &answered)| effects == u8::from(answered))
        });
        assert!(worlds > 1000, "{worlds}");
    }
}

#[test]
fn the_model_finds_two_effects_for_rerun_without_a_transaction() {
    let model = Model {
        config: config(Takeover::Rerun),
        effects: Effects::Separate,
        resolves_early: false,
    };
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        model.explore(6, |world| world.effects.iter().all(|&effects| effects <= 1))
    }));
    assert!(found.is_err(), "else the model could not find any");
}

fn claimed(config: &ClaimConfig) -> (Record, Lease) {
    match Record::claim(None, at(0), config, 7, FINGERPRINT) {
        (Claim::Run { lease, .. }, Some(record)) => (record, lease),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_lease_does_not_limit_the_retention_of_an_answer() {
    let config = ClaimConfig::DEFAULT;
    let (record, lease) = claimed(&config);
    assert_eq!(lease.until, at(30));
    let record = record.complete(at(40), &lease, &config).unwrap();
    assert!(!record.is_expired(at(40 + 24 * 3600 - 1)));
    assert!(record.is_expired(at(40 + 24 * 3600)));
}

#[test]
fn the_fencing_token_grows_until_the_record_expires() {
    let config = config(Takeover::Refuse);
    let (record, lease) = claimed(&config);
    let record = record.release(at(1), &lease, &config).unwrap();
    let (claim, record) = Record::claim(Some(&record), at(1), &config, 8, OTHER_FINGERPRINT);
    let Claim::Run {
        lease: second,
        repeated: false,
        ..
    } = claim
    else {
        panic!("{claim:?}");
    };
    assert_eq!(second.fence, 2);
    assert_eq!(
        record.unwrap().complete(at(1), &lease, &config),
        Err(LeaseLost)
    );
    let (claim, _) = Record::claim(record.as_ref(), at(60), &config, 9, FINGERPRINT);
    assert!(
        matches!(claim, Claim::Run { lease, .. } if lease.fence == 1),
        "as if removed"
    );
    let record = record.unwrap();
    assert_eq!(record.complete(at(60), &second, &config), Err(LeaseLost));
}

#[test]
fn an_execution_presumed_lost_may_answer_if_no_other_has_run() {
    let config = config(Takeover::Refuse);
    let (record, lease) = claimed(&config);
    let (claim, unknown) = Record::claim(Some(&record), at(2), &config, 8, FINGERPRINT);
    assert_eq!(claim, Claim::Unknown);
    let record = unknown.unwrap().complete(at(3), &lease, &config).unwrap();
    let (claim, _) = Record::claim(Some(&record), at(3), &config, 9, FINGERPRINT);
    assert_eq!(claim, Claim::Replay);
}

#[test]
fn a_resumed_execution_starts_after_the_last_step() {
    let config = config(Takeover::Resume);
    let (record, lease) = claimed(&config);
    let record = record.checkpoint(at(0), &lease, 2).unwrap();
    assert_eq!(record.checkpoint(at(0), &lease, 1).unwrap().step, 2);
    let (claim, record) = Record::claim(Some(&record), at(2), &config, 8, FINGERPRINT);
    let Claim::Run {
        step: 2,
        repeated: true,
        lease: second,
    } = claim
    else {
        panic!("{claim:?}");
    };
    let record = record.unwrap();
    assert_eq!(record.checkpoint(at(2), &lease, 3), Err(LeaseLost));
    // It has had no effect itself, but the steps before it have.
    let record = record.release(at(2), &second, &config).unwrap();
    assert_eq!(record.stage, ClaimStage::Unknown { since: at(2) });
}

#[test]
fn a_request_first_sent_before_the_retention_may_be_forgotten() {
    let config = config(Takeover::Refuse);
    assert!(!config.may_have_expired(at(10), at(12)));
    assert!(config.may_have_expired(at(10), at(13)));
    assert!(
        !config.may_have_expired(at(13), at(10)),
        "a clock that is ahead"
    );
}

#[test]
fn a_config_that_lets_a_key_run_twice_is_rejected() {
    let config = ClaimConfig::DEFAULT;
    assert_eq!(config.check(), Ok(()));
    let lease = Duration::ZERO;
    let no_lease = ClaimConfig { lease, ..config };
    assert_eq!(no_lease.check(), Err(InvalidClaimConfig::NoLease));
    let (retention, least) = (Duration::ZERO, Duration::from_secs(600));
    let forgets = ClaimConfig {
        retention,
        ..config
    };
    assert!(forgets.check().is_err());
    let refused = Err(InvalidClaimConfig::RetentionTooShort { retention, least });
    assert_eq!(forgets.check_retention(least), refused);
    let retention = least;
    assert_eq!(
        ClaimConfig {
            retention,
            ..config
        }
        .check_retention(least),
        Ok(())
    );
}

#[test]
fn a_returned_claim_had_no_effect_even_if_declared_unknown() {
    let config = config(Takeover::Refuse);
    let (_, claimed) = Record::claim(None, at(0), &config, 1, FINGERPRINT);
    let claimed = claimed.unwrap();
    let free = |record: &Record, now| {
        let (claim, _) = Record::claim(Some(record), now, &config, 3, OTHER_FINGERPRINT);
        matches!(
            claim,
            Claim::Run {
                repeated: false,
                ..
            }
        )
    };
    let given_back = claimed.give_back(at(1), 1, &config).unwrap();
    assert!(free(&given_back, at(1)));
    assert_eq!(given_back.give_back(at(1), 1, &config), Ok(given_back));
    assert_eq!(claimed.give_back(at(1), 2, &config), Err(LeaseLost));
    // A duplicate has found the lease expired.
    let (claim, unknown) = Record::claim(Some(&claimed), at(2), &config, 2, FINGERPRINT);
    assert_eq!(claim, Claim::Unknown);
    assert!(free(
        &unknown.unwrap().give_back(at(2), 1, &config).unwrap(),
        at(2)
    ));
    // A completed execution cannot be given back, and an earlier execution may have had an effect.
    let lease = Lease {
        owner: 1,
        fence: 1,
        until: at(2),
    };
    let completed = claimed.complete(at(1), &lease, &config).unwrap();
    assert_eq!(completed.give_back(at(1), 1, &config), Err(LeaseLost));
    let rerun = ClaimConfig {
        takeover: Takeover::Rerun,
        ..config
    };
    let (_, taken) = Record::claim(Some(&claimed), at(2), &rerun, 2, FINGERPRINT);
    let given_back = taken.unwrap().give_back(at(2), 2, &config).unwrap();
    assert_eq!(given_back.stage, ClaimStage::Unknown { since: at(2) });
}
