//! Settings that operators make for all gateways of the store: one text per name. To replace one,
//! the caller gives the revision that it has read, so that no change is lost.

use super::sql::{Row, Transaction, values};
use super::{Store, StoreError};

/// Name of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingName {
    /// API keys, in the format of a keys file.
    Keys,
    /// Names of cordoned nodes, as a JSON list.
    Cordons,
}

impl SettingName {
    fn column(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Cordons => "cordons",
        }
    }
}

/// A setting as stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SharedSetting {
    /// 0 if nobody has set it.
    pub revision: u64,
    /// Its text.
    pub value: String,
}

impl Store {
    /// A setting, unless it is of the revision that the caller knows.
    pub(crate) async fn setting(
        &self,
        name: SettingName,
        known: Option<u64>,
    ) -> Result<Option<SharedSetting>, StoreError> {
        let read = move |transaction: &mut Transaction<'_>| {
            // The text may be long: it is read only if it is new.
            let sql = "SELECT revision, CASE WHEN revision = ?2 THEN '' ELSE value END AS value \
                       FROM shared_settings WHERE name = ?1";
            let found = transaction.first(sql, values![name.column(), known.unwrap_or(0)])?;
            found.map_or(Ok(SharedSetting::default()), |mut row: Row| {
                Ok(SharedSetting { revision: row.take("revision")?, value: row.take("value")? })
            })
        };
        let setting = self.0.database.run(read).await?;
        Ok(Some(setting).filter(|setting| known != Some(setting.revision)))
    }

    /// Replaces a setting, and tells all gateways. `None` if it is no longer of the revision
    /// `before`; otherwise its revision.
    pub(crate) async fn replace_setting(
        &self,
        name: SettingName,
        before: u64,
        value: String,
    ) -> Result<Option<u64>, StoreError> {
        let replace = move |transaction: &mut Transaction<'_>| {
            let sql = "INSERT INTO shared_settings (name, revision, value) VALUES (?1, 0, '') \
                       ON CONFLICT (name) DO NOTHING";
            transaction.execute(sql, values![name.column()])?;
            let sql = "UPDATE shared_settings SET revision = revision + 1, value = ?3 \
                       WHERE name = ?1 AND revision = ?2";
            let changed = transaction.execute(sql, values![name.column(), before, &value])?;
            Ok((changed == 1).then_some(before + 1))
        };
        self.change(replace).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::with_store;
    use super::*;

    #[tokio::test]
    async fn a_setting_is_read_when_it_is_new_and_no_change_is_lost() {
        with_store(async |store| {
            let read = async |known| store.setting(SettingName::Keys, known).await.unwrap();
            let replace = async |before, text: &str| {
                store.replace_setting(SettingName::Keys, before, text.into()).await.unwrap()
            };
            assert_eq!(read(None).await, Some(SharedSetting::default()), "nobody has set it");
            assert_eq!(read(Some(0)).await, None);
            assert_eq!(replace(0, "a").await, Some(1));
            assert_eq!(replace(0, "b").await, None, "somebody was faster");
            let first = SharedSetting { revision: 1, value: "a".into() };
            assert_eq!(read(Some(0)).await, Some(first.clone()));
            assert_eq!(read(None).await, Some(first));
            assert_eq!(read(Some(1)).await, None);
            assert_eq!(replace(1, "b").await, Some(2));
            assert_eq!(read(Some(1)).await.unwrap().value, "b");
            let other = store.setting(SettingName::Cordons, None).await.unwrap();
            assert_eq!(other, Some(SharedSetting::default()));
        })
        .await;
    }
}
