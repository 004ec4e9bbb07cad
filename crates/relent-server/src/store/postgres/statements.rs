//! The SQL statements: one for a claim, and one for a change.

use std::time::{Duration, Instant};

use relent_core::idempotency::{ClaimConfig, ClaimStage, Fingerprint, Lease, Record};

use super::error::PostgresError;
use crate::postgres::{Columns, CommitError, SqlSession, SqlTransaction, Value};
use crate::server_clock::ServerClock;
use crate::store::micros::{MAX_MICROS, instant, of, span};
use crate::store::{Change, Claimed, Key, WriteError, claimed};

/// The multiplier that hashes a key to its advisory lock number.
const LOCK_HASH_MULTIPLIER: i64 = 0x517c_c1b7_2722_0a95;
/// How often a claim repeats its statement after concurrent changes of the record.
pub(super) const MAX_CLAIM_ATTEMPTS: usize = 10;
/// The remaining time that is returned while another transaction has the key.
const LOCKED_KEY_WAIT: Duration = Duration::from_millis(100);

/// The start of the statement, in microseconds since 1970.
pub(super) const CLOCK: &str = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint";

/// The texts of the statements, with a clock expression.
pub(crate) struct Sql {
    claim: String,
    claim_locked: String,
    write: String,
    /// Fails with [`NONE_WRITTEN`] if it writes no record, so that the transaction cannot be committed.
    write_or_fail: String,
    remove: String,
    replace: String,
    pub(super) look: String,
    pub(super) find_unknown: String,
}

impl Sql {
    pub(super) fn new(clock: &str) -> Self {
        // Reads an existing record, and the core decides. The statement does not see a record that was inserted after
        // it began: then the record is neither new nor found.
        let claim = |held: &str, in_time: &str| {
            format!(
                "WITH time AS MATERIALIZED (SELECT {clock} AS now, {held} AS held),
                 new AS (
                     INSERT INTO relent_idempotency_1
                         (key, fingerprint, owner, fence, stage, until, step, repeated, expires)
                     SELECT $1::bytea, $2::bytea, $3::bytea, 1, 0, least(now + $4::bigint, {MAX_MICROS}),
                         0, false, least(now + $4 + $5::bigint, {MAX_MICROS})
                     FROM time WHERE held AND {in_time}
                     ON CONFLICT (key) DO NOTHING RETURNING key)
                 SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer,
                     now, held, EXISTS (SELECT FROM new)
                 FROM time LEFT JOIN relent_idempotency_1 ON relent_idempotency_1.key = $1"
            )
        };
        // The stage after the change `$4`. If an earlier execution may have had an effect, a release becomes unknown
        // (3).
        let stage = "CASE WHEN $4 IN (2, 5) AND (repeated OR step > 0) THEN 3 WHEN $4 = 4 THEN stage WHEN $4 = 5 THEN 2 ELSE $4 END";
        // An execution may write the same end again. A claim that is given back never started, so its fencing token
        // is not compared.
        let write = format!(
            "UPDATE relent_idempotency_1 SET
                 stage = {stage},
                 until = CASE
                     WHEN $4 = 0 THEN least(now + $5::bigint, {MAX_MICROS})
                     WHEN $4 = 4 OR stage = {stage} THEN until
                     WHEN {stage} = 3 THEN now
                     ELSE 0 END,
                 step = CASE WHEN $4 = 4 THEN greatest(step, $7::bigint) ELSE step END,
                 expires = CASE
                     WHEN $4 = 0 THEN least(now + $5 + $6::bigint, {MAX_MICROS})
                     WHEN $4 = 4 OR stage = {stage} THEN expires
                     ELSE least(now + $6, {MAX_MICROS}) END,
                 answer = $8::bytea
             FROM (SELECT {clock} AS now) AS time
             WHERE key = $1::bytea AND owner = $2::bytea AND (fence = $3::bigint OR $4::smallint = 5) AND expires > now
                 AND (stage IN (0, 3) OR ($4::smallint IN (1, 2, 5) AND stage = {stage}))
             RETURNING until"
        );
        Self {
            claim: claim("true", "now <= $6::bigint"),
            claim_locked: claim("pg_try_advisory_xact_lock($6::bigint)", "true"),
            write_or_fail: format!("WITH written AS ({write}) SELECT 1 / count(*) FROM written"),
            write,
            remove: format!(
                "WITH removed AS (
                     DELETE FROM relent_idempotency_1 WHERE key IN (
                         SELECT key FROM relent_idempotency_1 WHERE expires <= {clock}
                         ORDER BY expires LIMIT $1::bigint FOR UPDATE SKIP LOCKED)
                     RETURNING 1)
                 SELECT count(*) FROM removed"
            ),
            replace: format!(
                "UPDATE relent_idempotency_1 SET
                     fingerprint = $8::bytea, owner = $9::bytea, fence = $10::bigint, stage = $11::smallint,
                     until = $12::bigint, step = $13::bigint, repeated = $14::boolean, expires = $15::bigint,
                     answer = $16::bytea
                 WHERE key = $1::bytea AND owner = $2::bytea AND fence = $3::bigint AND stage = $4::smallint
                     AND until = $5::bigint AND step = $6::bigint AND expires = $7::bigint
                     AND {clock} <= $17::bigint
                 RETURNING true"
            ),
            look: format!(
                "SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer, now
                 FROM (SELECT {clock} AS now) AS time
                     LEFT JOIN relent_idempotency_1 ON relent_idempotency_1.key = $1::bytea"
            ),
            find_unknown: format!(
                "SELECT fingerprint, owner, fence, stage, until, step, repeated, expires, answer, now, key
                 FROM (SELECT {clock} AS now) AS time, relent_idempotency_1
                 WHERE stage IN (0, 3) AND (stage = 3 OR until <= now) AND expires > now
                     AND (expires, key) > ($1::bigint, $2::bytea)
                 ORDER BY expires, key LIMIT $3::bigint"
            ),
        }
    }
}

/// The SQLSTATE of a division by zero, the number of written records.
pub(crate) const NONE_WRITTEN: &str = "22012";

/// A record and its encoded response.
type Stored = (Record, Option<Vec<u8>>);

/// Reads a record from a row; `None` if there is none.
pub(super) fn record(row: &impl Columns) -> Result<Option<Stored>, PostgresError> {
    let Some(fingerprint) = row.bytes(0)? else {
        return Ok(None);
    };
    let until = instant(row.long(4)?);
    let stage = match row.short(3)? {
        0 => Some(ClaimStage::Running { until }),
        1 => Some(ClaimStage::Completed),
        2 => Some(ClaimStage::Released),
        3 => Some(ClaimStage::Unknown { since: until }),
        _ => None,
    };
    let record = || {
        Some(Record {
            fingerprint: Fingerprint(fingerprint.try_into().ok()?),
            owner: u128::from_be_bytes(row.bytes(1).ok()??.try_into().ok()?),
            fence: row.long(2).ok()?.cast_unsigned(),
            stage: stage?,
            step: u32::try_from(row.long(5).ok()?).ok()?,
            repeated: row.flag(6).ok()?,
            expires: instant(row.long(7).ok()?),
        })
    };
    match record() {
        Some(record) => Ok(Some((record, row.bytes(8)?.map(<[u8]>::to_vec)))),
        None => Err(PostgresError::Record(
            "it is not as this version writes it".into(),
        )),
    }
}

const fn stage(stage: ClaimStage) -> i16 {
    match stage {
        ClaimStage::Running { .. } => 0,
        ClaimStage::Completed => 1,
        ClaimStage::Released => 2,
        // Stages added to the enum later are stored as 3, which is never runnable.
        _ => 3,
    }
}

/// The result of a claim, and the owner of the record that decided it.
pub(crate) struct Found {
    pub(crate) claimed: Claimed,
    pub(crate) owner: Option<u128>,
}

/// The mode of a claim.
#[derive(Clone, Copy)]
pub(crate) enum Mode<'c> {
    /// The claim is committed on its own, but not after this time, when its caller no longer waits. A stalled
    /// database may execute statements late.
    Until(&'c ServerClock, Instant),
    /// The claim is part of a transaction, whose advisory lock excludes other transactional claims of the key.
    Locked,
}

impl Sql {
    pub(crate) async fn claim<S: SqlSession>(
        &self,
        session: &mut S,
        mode: Mode<'_>,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Found, PostgresError> {
        let owner_bytes = owner.to_be_bytes();
        // Keys are usually digests, but callers may construct others, so all bytes are hashed.
        let (chunks, _) = key.0.as_chunks();
        let lock = chunks.iter().fold(0_i64, |lock, chunk| {
            (lock.rotate_left(5) ^ i64::from_be_bytes(*chunk)).wrapping_mul(LOCK_HASH_MULTIPLIER)
        });
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            let (statement, last, until) = match mode {
                Mode::Until(clock, until) => (&self.claim, clock.at(until), clock.at(until)),
                Mode::Locked => (&self.claim_locked, lock, i64::MAX),
            };
            let parameters = [
                Value::Bytes(Some(&key.0)),
                Value::Bytes(Some(&fingerprint.0)),
                Value::Bytes(Some(&owner_bytes)),
                Value::Long(span(config.lease)),
                Value::Long(span(config.retention)),
                Value::Long(last),
            ];
            let Some(row) = session.query(statement, &parameters).await? else {
                continue;
            };
            let micros = row.long(9)?;
            if let Mode::Until(clock, _) = mode {
                clock.learn(micros);
            }
            let now = instant(micros);
            let (held, new) = (row.flag(10)?, row.flag(11)?);
            let stored = record(&row)?;
            // No record is visible: a concurrent insert, or the claim was late. The clock of the database is known
            // now.
            if stored.is_none() && held && !new {
                continue;
            }
            let before = stored.as_ref().map(|(record, _)| record);
            let (claim, change) = Record::claim(before, now, config, owner, fingerprint);
            let by = before.map(|record| record.owner);
            if let Some(after) = change {
                // The transaction that holds the lock is about to change the record.
                if !held {
                    let claimed = Claimed::InFlight(LOCKED_KEY_WAIT);
                    return Ok(Found {
                        claimed,
                        owner: None,
                    });
                }
                if let Some(before) = before
                    && !self
                        .replace(session, key, before, &after, None, until)
                        .await?
                {
                    continue;
                }
            }
            let answer = stored.and_then(|(_, answer)| answer);
            let claimed = claimed(claim, now, answer).map_err(PostgresError::Record)?;
            return Ok(Found { claimed, owner: by });
        }
        Err(PostgresError::Contended)
    }

    pub(crate) async fn write<S: SqlSession>(
        &self,
        session: &mut S,
        key: &Key,
        lease: &Lease,
        change: &Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<PostgresError>> {
        let (owner, answer) = (lease.owner.to_be_bytes(), change.answer());
        let parameters = written(key, &owner, lease, change, answer.as_deref(), config);
        let Some(row) = session.query(&self.write, &parameters).await? else {
            return Err(self.why_not_written(session, key).await?);
        };
        let until = row.long(0)?;
        Ok(match change {
            Change::Renew => Lease {
                until: instant(until),
                ..*lease
            },
            _ => *lease,
        })
    }

    /// Returns whether the lease is lost or the record is gone: expired, or the clock was set forward.
    async fn why_not_written<S: SqlSession>(
        &self,
        session: &mut S,
        key: &Key,
    ) -> Result<WriteError<PostgresError>, PostgresError> {
        let key = [Value::Bytes(Some(&key.0))];
        let Some(row) = session.query(&self.look, &key).await? else {
            return Ok(WriteError::Lost);
        };
        let now = instant(row.long(9)?);
        let stored = record(&row)?.filter(|(record, _)| !record.is_expired(now));
        Ok(stored.map_or(WriteError::Gone, |_| WriteError::Lost))
    }

    /// Like `write`, and commits the transaction.
    pub(crate) async fn write_and_commit(
        &self,
        transaction: impl SqlTransaction,
        key: &Key,
        lease: &Lease,
        change: &Change,
        config: &ClaimConfig,
    ) -> Result<(), CommitError> {
        let (owner, answer) = (lease.owner.to_be_bytes(), change.answer());
        let parameters = written(key, &owner, lease, change, answer.as_deref(), config);
        transaction
            .commit_with(&self.write_or_fail, &parameters)
            .await
    }

    /// Replaces a record if it is unchanged and `until` has not passed; returns whether it did.
    pub(super) async fn replace<S: SqlSession>(
        &self,
        session: &mut S,
        key: &Key,
        before: &Record,
        after: &Record,
        answer: Option<&[u8]>,
        until: i64,
    ) -> Result<bool, PostgresError> {
        let ends = |record: &Record| match record.stage {
            ClaimStage::Running { until } | ClaimStage::Unknown { since: until } => of(until),
            _ => 0,
        };
        let (old_owner, new_owner) = (before.owner.to_be_bytes(), after.owner.to_be_bytes());
        let parameters = [
            Value::Bytes(Some(&key.0)),
            Value::Bytes(Some(&old_owner)),
            Value::Long(before.fence.cast_signed()),
            Value::Short(stage(before.stage)),
            Value::Long(ends(before)),
            Value::Long(i64::from(before.step)),
            Value::Long(of(before.expires)),
            Value::Bytes(Some(&after.fingerprint.0)),
            Value::Bytes(Some(&new_owner)),
            Value::Long(after.fence.cast_signed()),
            Value::Short(stage(after.stage)),
            Value::Long(ends(after)),
            Value::Long(i64::from(after.step)),
            Value::Flag(after.repeated),
            Value::Long(of(after.expires)),
            Value::Bytes(answer),
            Value::Long(until),
        ];
        Ok(session.query(&self.replace, &parameters).await?.is_some())
    }

    /// Removes at most `most` expired records, and returns their number.
    pub(super) async fn remove_expired<S: SqlSession>(
        &self,
        session: &mut S,
        most: usize,
    ) -> Result<usize, PostgresError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let removed = session.query(&self.remove, &[Value::Long(most)]).await?;
        let removed = removed.map_or(Ok(0), |row| row.long(0))?;
        Ok(usize::try_from(removed).unwrap_or(usize::MAX))
    }
}

/// Returns the parameters of a change.
fn written<'a>(
    key: &'a Key,
    owner: &'a [u8; 16],
    lease: &Lease,
    change: &Change,
    answer: Option<&'a [u8]>,
    config: &ClaimConfig,
) -> [Value<'a>; 8] {
    let (what, step) = match change {
        Change::Renew => (0, 0),
        Change::Complete(_) => (1, 0),
        Change::Release => (2, 0),
        Change::GiveUp => (3, 0),
        Change::Checkpoint(step) => (4, i64::from(*step)),
        Change::GiveBack => (5, 0),
    };
    [
        Value::Bytes(Some(&key.0)),
        Value::Bytes(Some(owner)),
        Value::Long(lease.fence.cast_signed()),
        Value::Short(what),
        Value::Long(span(config.lease)),
        Value::Long(span(config.retention)),
        Value::Long(step),
        Value::Bytes(answer),
    ]
}
