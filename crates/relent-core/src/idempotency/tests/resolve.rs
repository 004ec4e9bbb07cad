//! A resolver that determines the outcome of lost executions, beside the two processes.

use super::*;

const PAID: Resolution = Resolution::Applied { digest: 77 };

const fn resolution(applied: bool) -> Resolution {
    if applied {
        PAID
    } else {
        Resolution::NotApplied
    }
}

impl Model {
    /// The resolver finds an unknown outcome and determines it elsewhere.
    pub(super) fn ask(&self, before: &World) -> Option<World> {
        let found = (before.stored).filter(|record| record.is_unknown(at(before.now)))?;
        let may_act = before.processes.iter().any(|process| {
            matches!(process, Process::Runs { lease, acted: false, lost: false, .. } if found.matches_lease(lease))
        });
        if before.asks == 2 || (may_act && !self.resolves_early) {
            return None;
        }
        let mut world = before.clone();
        world.asked = Some((found, world.effects[usize::from(world.life)] > 0));
        world.asks += 1;
        Some(world)
    }

    /// It writes the outcome at any later time, possibly repeatedly.
    pub(super) fn resolve(&self, before: &World) -> Option<World> {
        let ((found, applied), now) = (before.asked?, at(before.now));
        let resolve = |stored: Option<&Record>, applied| {
            Record::resolve(stored, now, &found, resolution(applied), &self.config)
        };
        let resolved = resolve(before.stored.as_ref(), applied);
        let stored = (before.stored).filter(|record| !record.is_expired(now));
        let record = match (resolved, stored.map(|record| record.stage)) {
            (Ok(record), _) => record,
            (Err(NotResolved::Absent), None)
            | (Err(NotResolved::Completed), Some(ClaimStage::Completed))
            | (Err(NotResolved::Released), Some(ClaimStage::Released))
            | (Err(NotResolved::Changed), Some(ClaimStage::Unknown { .. })) => return None,
            (Err(NotResolved::Running), Some(ClaimStage::Running { until })) if now < until => {
                return None;
            }
            (Err(NotResolved::Changed), Some(ClaimStage::Running { until })) if until <= now => {
                return None;
            }
            (error, stage) => panic!("{error:?} of {stage:?}: {before:#?}"),
        };
        let opposite = resolve(Some(&record), !applied).unwrap_err();
        let is = if applied {
            NotResolved::Completed
        } else {
            NotResolved::Released
        };
        assert_eq!(opposite, is, "{before:?}");
        if Some(record) == before.stored {
            return None;
        }
        assert_eq!(before.stored, Some(found), "{before:?}");
        assert!(
            found.is_unknown(now) && record.fence > before.highest_fence,
            "{before:?}"
        );
        assert_eq!(resolve(Some(&record), applied), Ok(record), "{before:?}");
        let mut world = before.clone();
        world.stored = Some(record);
        world.highest_fence = record.fence;
        world.answered[usize::from(world.life)] |= applied;
        Some(world)
    }
}

#[test]
fn resolving_not_applied_while_it_can_act_risks_a_second_effect() {
    let model = Model {
        config: config(Takeover::Refuse),
        effects: Effects::Separate,
        resolves_early: true,
    };
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        model.explore(6, |world| world.effects.iter().all(|&effects| effects <= 1))
    }));
    assert!(found.is_err(), "else the documentation warns of nothing");
}

/// The record after a crash, when the lease has expired.
fn lost(config: &ClaimConfig) -> (Record, Lease) {
    let (record, lease) = claimed(config);
    assert!(record.is_unknown(at(2)));
    (record, lease)
}

#[test]
fn after_not_applied_the_token_is_higher_and_the_lost_owner_is_fenced() {
    for takeover in [Takeover::Refuse, Takeover::Rerun, Takeover::Resume] {
        let config = config(takeover);
        let (found, lease) = lost(&config);
        let not_applied = Resolution::NotApplied;
        let free = Record::resolve(Some(&found), at(2), &found, not_applied, &config).unwrap();
        let lost_writes = |record: &Record| {
            assert_eq!(record.renew(at(2), &lease, &config), Err(LeaseLost));
            assert_eq!(record.checkpoint(at(2), &lease, 1), Err(LeaseLost));
            assert_eq!(record.complete(at(2), &lease, &config), Err(LeaseLost));
            assert_eq!(record.release(at(2), &lease, &config), Err(LeaseLost));
            assert_eq!(record.give_up(at(2), &lease, &config), Err(LeaseLost));
        };
        lost_writes(&free);
        let (claim, next) = Record::claim(Some(&free), at(2), &config, 8, FINGERPRINT);
        let Claim::Run {
            lease: second,
            step: 0,
            repeated: false,
        } = claim
        else {
            panic!("{claim:?}");
        };
        assert!(second.fence > free.fence && free.fence > lease.fence);
        lost_writes(&next.unwrap());
    }
}

#[test]
fn a_resolved_answer_is_replayed_and_the_lost_owner_cannot_replace_it() {
    let config = config(Takeover::Rerun);
    let (found, lease) = lost(&config);
    let paid = Record::resolve(Some(&found), at(2), &found, PAID, &config).unwrap();
    assert_eq!(paid.expires, at(5), "kept as long as any answer");
    let (claim, _) = Record::claim(Some(&paid), at(2), &config, 8, FINGERPRINT);
    assert_eq!(claim, Claim::Replay);
    let (claim, _) = Record::claim(Some(&paid), at(2), &config, 8, OTHER_FINGERPRINT);
    assert_eq!(claim, Claim::Mismatch);
    assert_eq!(paid.complete(at(2), &lease, &config), Err(LeaseLost));
    // Another resolver cannot set another answer.
    let other = Resolution::Applied { digest: 78 };
    let refused = Record::resolve(Some(&paid), at(2), &found, other, &config);
    assert_eq!(refused, Err(NotResolved::Completed));
}

#[test]
fn a_resolution_based_on_an_outdated_record_is_rejected() {
    let config = config(Takeover::Refuse);
    let (found, lease) = lost(&config);
    let resolve = |stored: &Record, now| {
        Record::resolve(
            Some(stored),
            at(now),
            &found,
            Resolution::NotApplied,
            &config,
        )
    };
    // The lost owner renewed the lease and was lost again: it may have acted meanwhile.
    let (back, _) = found.renew(at(2), &lease, &config).unwrap();
    assert_eq!(resolve(&back, 3), Err(NotResolved::Running));
    assert_eq!(resolve(&back, 4), Err(NotResolved::Changed));
    let stepped = found.checkpoint(at(2), &lease, 1).unwrap();
    assert_eq!(resolve(&stepped, 2), Err(NotResolved::Changed));
    // The first execution of another life of the key has the same fencing token.
    let (_, another) = Record::claim(None, at(5), &config, 9, FINGERPRINT);
    assert_eq!(resolve(&another.unwrap(), 7), Err(NotResolved::Changed));
    assert_eq!(resolve(&found, 5), Err(NotResolved::Absent));
}

#[test]
fn an_outcome_is_unknown_from_lease_expiry_or_from_its_recording() {
    let config = config(Takeover::Refuse);
    let (record, lease) = claimed(&config);
    let span = Duration::from_secs;
    assert_eq!(record.unknown_for(at(1)), span(0));
    assert_eq!(record.unknown_for(at(4)), span(2));
    let said = record.give_up(at(1), &lease, &config).unwrap();
    assert!(said.is_unknown(at(1)));
    assert_eq!(said.unknown_for(at(3)), span(2));
    assert_eq!(said.unknown_for(at(4)), span(0), "it has expired");
    assert!(!said.is_unknown(at(4)));
    let done = record.complete(at(1), &lease, &config).unwrap();
    assert!(!done.is_unknown(at(3)));
}

#[test]
fn the_age_of_an_outcome_counts_from_its_end_whatever_the_retention() {
    let config = ClaimConfig {
        retention: Duration::from_secs(100),
        ..config(Takeover::Refuse)
    };
    let (record, lease) = claimed(&config);
    // Its lease expires at 2, and a duplicate detects that later.
    let (_, marked) = Record::claim(Some(&record), at(7), &config, 8, FINGERPRINT);
    let ended = record.give_up(at(1), &lease, &config).unwrap();
    let ages = [record, marked.unwrap(), ended].map(|record| record.unknown_for(at(9)));
    assert_eq!(ages, [7, 7, 8].map(Duration::from_secs));
    // The same end may be written again, and does not make it younger.
    let again = ended.give_up(at(5), &lease, &config).unwrap();
    assert_eq!(again, ended);
}

#[test]
fn a_resolution_never_shortens_the_time_for_which_a_record_is_kept() {
    let long = ClaimConfig {
        retention: Duration::from_secs(100),
        ..config(Takeover::Refuse)
    };
    let (found, _) = lost(&long);
    for resolution in [PAID, Resolution::NotApplied] {
        for config in [long, config(Takeover::Refuse)] {
            let resolved = Record::resolve(Some(&found), at(2), &found, resolution, &config);
            assert_eq!(resolved.unwrap().expires, found.expires);
        }
        let longer = ClaimConfig {
            retention: Duration::from_secs(200),
            ..long
        };
        let resolved = Record::resolve(Some(&found), at(2), &found, resolution, &longer);
        assert_eq!(resolved.unwrap().expires, at(202));
    }
}
