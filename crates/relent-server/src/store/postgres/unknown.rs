//! Unknown outcomes in a PostgreSQL database.

use relent_core::idempotency::ClaimConfig;

use super::statements::{MAX_CLAIM_ATTEMPTS, Sql, record};
use super::{PostgresError, ResolveError};
use crate::postgres::{Columns, SqlSession, Value};
use crate::store::micros::{instant, of};
use crate::store::{Key, Resolution, UnknownOutcome};

impl Sql {
    pub(super) async fn find_unknown<S: SqlSession>(
        &self,
        session: &mut S,
        after: Option<&UnknownOutcome>,
        most: usize,
    ) -> Result<Vec<UnknownOutcome>, PostgresError> {
        let (expires, key) = after.map_or((-1, &[][..]), |after| {
            (of(after.record().expires), &after.key().0[..])
        });
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let parameters = [
            Value::Long(expires),
            Value::Bytes(Some(key)),
            Value::Long(most),
        ];
        let rows = session.query_all(&self.find_unknown, &parameters).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let key = row.bytes(10)?.unwrap_or_default().try_into();
            let (Ok(key), Some((record, _))) = (key, record(row)?) else {
                return Err(PostgresError::Record("its key is not of 32 bytes".into()));
            };
            found.extend(UnknownOutcome::of(Key(key), record, instant(row.long(9)?)));
        }
        Ok(found)
    }

    /// Reads the record, lets the core decide, and replaces the record if it is unchanged.
    pub(super) async fn resolve<S: SqlSession>(
        &self,
        session: &mut S,
        found: &UnknownOutcome,
        resolution: &Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<PostgresError>> {
        let answer = resolution.answer().map(|answer| answer.to_bytes());
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            let key = [Value::Bytes(Some(&found.key().0))];
            let Some(row) = session.query(&self.look, &key).await? else {
                continue;
            };
            let stored = record(&row)?.map(|(record, _)| record);
            let now = instant(row.long(9)?);
            let resolved = resolution.make(stored.as_ref(), now, found, config)?;
            let Some(stored) = stored.filter(|stored| *stored != resolved) else {
                return Ok(());
            };
            let (key, answer) = (found.key(), answer.as_deref());
            let replaced = self.replace(session, key, &stored, &resolved, answer, i64::MAX);
            if replaced.await? {
                return Ok(());
            }
        }
        Err(PostgresError::Contended.into())
    }
}
