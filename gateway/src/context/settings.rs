//! The current settings: the configuration, and the keys of the store. Everyone takes snapshots: a
//! request keeps the settings it started with.

use std::net::SocketAddr;
use std::sync::Arc;

use flotilla_listeners::socket::{self, BindError};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};

use crate::access::keys::{ApiKey, Keys};
use crate::config::Config;

/// A checked configuration and the keys built from it.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Arc<Config>,
    /// The keys of the store; `None` until they are known.
    pub stored_keys: Option<Arc<StoredKeys>>,
    /// All API keys.
    pub keys: Keys,
}

/// Keys of the store.
#[derive(Debug)]
pub struct StoredKeys {
    /// The revision of the store's list; `None` for the copy of an earlier run.
    pub revision: Option<u64>,
    /// The keys. Those of the configuration come first: one with the same name or digest does not
    /// count.
    pub keys: Vec<ApiKey>,
}

/// The current settings and their listeners. Clones share them.
#[derive(Debug, Clone)]
pub struct LiveSettings(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: watch::Sender<Arc<Settings>>,
    /// Held while the settings are replaced.
    replacing: Mutex<()>,
    public: Socket,
    admin: Socket,
    http: Socket,
}

/// A replaceable listener. Settings snapshots do not hold it, so it closes as soon as it is
/// replaced, not with the last request that used the old settings.
#[derive(Debug)]
pub struct Socket(watch::Sender<Option<Arc<TcpListener>>>);

impl LiveSettings {
    /// Applies the initial configuration.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub async fn new(config: Config) -> Result<Self, BindError> {
        let public = bind(config.listen).await?;
        let admin = match &config.admin {
            Some(admin) => Some(bind(admin.listen).await?),
            None => None,
        };
        let http = match http_address(&config) {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let keys = keys(&config, None, None);
        let settings = Settings { config: Arc::new(config), stored_keys: None, keys };
        Ok(Self(Arc::new(Shared {
            settings: watch::Sender::new(Arc::new(settings)),
            replacing: Mutex::default(),
            public: Socket(watch::Sender::new(Some(public))),
            admin: Socket(watch::Sender::new(admin)),
            http: Socket(watch::Sender::new(http)),
        })))
    }

    /// The current settings.
    pub fn now(&self) -> Arc<Settings> {
        self.0.settings.borrow().clone()
    }

    /// Watches the settings.
    pub fn changes(&self) -> watch::Receiver<Arc<Settings>> {
        self.0.settings.subscribe()
    }

    /// The public listener.
    pub fn public(&self) -> &Socket {
        &self.0.public
    }

    /// The admin listener.
    pub fn admin(&self) -> &Socket {
        &self.0.admin
    }

    /// The listener for plain HTTP beside TLS.
    pub fn http(&self) -> &Socket {
        &self.0.http
    }

    /// Replaces configuration and listeners.
    ///
    /// # Errors
    /// An address cannot be bound; then nothing changes.
    pub async fn replace(&self, mut config: Config) -> Result<(), BindError> {
        let _alone = self.0.replacing.lock().await;
        let old = self.now();
        config.keep_certificate(&old.config);
        let listens = |config: &Config| config.admin.as_ref().map(|admin| admin.listen);
        let public = match config.listen == old.config.listen {
            true => self.0.public.listener(),
            false => Some(bind(config.listen).await?),
        };
        let admin = match listens(&config) {
            same if same == listens(&old.config) => self.0.admin.listener(),
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let http = match http_address(&config) {
            same if same == http_address(&old.config) => self.0.http.listener(),
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let stored_keys = old.stored_keys.clone();
        let keys = keys(&config, stored_keys.as_deref(), Some(&old.keys));
        let settings = Settings { config: Arc::new(config), stored_keys, keys };
        self.0.settings.send_replace(Arc::new(settings));
        self.0.public.0.send_replace(public);
        self.0.admin.0.send_replace(admin);
        self.0.http.0.send_replace(http);
        Ok(())
    }
}

impl LiveSettings {
    /// Replaces the keys of the store.
    pub(super) async fn set_stored_keys(&self, stored: StoredKeys) {
        let _alone = self.0.replacing.lock().await;
        let old = self.now();
        let keys = keys(&old.config, Some(&stored), Some(&old.keys));
        let (config, stored_keys) = (old.config.clone(), Some(Arc::new(stored)));
        self.0.settings.send_replace(Arc::new(Settings { config, stored_keys, keys }));
    }
}

impl Socket {
    /// Watches the listener.
    pub fn changes(&self) -> watch::Receiver<Option<Arc<TcpListener>>> {
        self.0.subscribe()
    }

    /// The current listener, if any.
    pub fn listener(&self) -> Option<Arc<TcpListener>> {
        self.0.borrow().clone()
    }

    /// The address it is bound to.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener()?.local_addr().ok()
    }

    /// Closes the listener.
    pub fn close(&self) {
        self.0.send_replace(None);
    }
}

fn keys(config: &Config, stored: Option<&StoredKeys>, old: Option<&Keys>) -> Keys {
    if config.allow_anonymous {
        return Keys::anonymous(&config.aliases, old);
    }
    let has_stored = config.store.as_ref().is_some_and(|store| store.has_keys);
    let stored = stored.filter(|_| has_stored);
    let others = stored.map_or(&[][..], |stored| &stored.keys);
    let keys = Keys::new(&config.keys, others, &config.aliases, old);
    if has_stored && stored.is_none() { keys.incomplete() } else { keys }
}

fn http_address(config: &Config) -> Option<SocketAddr> {
    config.acme.as_ref()?.http_listen
}

async fn bind(address: SocketAddr) -> Result<Arc<TcpListener>, BindError> {
    socket::bind(address, "(listen)").await.map(Arc::new)
}
