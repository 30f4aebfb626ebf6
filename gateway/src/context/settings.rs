//! The current settings. The reload task writes them and everyone else takes snapshots: a request
//! keeps the settings it started with.

use std::net::SocketAddr;
use std::sync::Arc;

use flotilla_listeners::socket::{self, BindError};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::access::keys::Keys;
use crate::config::Config;

/// A checked configuration and the keys built from it.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// The API keys.
    pub keys: Keys,
}

/// The current settings and their listeners. Clones share them.
#[derive(Debug, Clone)]
pub struct LiveSettings(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: watch::Sender<Arc<Settings>>,
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
        let keys = keys(&config, None);
        Ok(Self(Arc::new(Shared {
            settings: watch::Sender::new(Arc::new(Settings { config, keys })),
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

    /// Replaces settings and listeners. Only one task may call this.
    ///
    /// # Errors
    /// An address cannot be bound; then nothing changes.
    pub async fn replace(&self, mut config: Config) -> Result<(), BindError> {
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
        let keys = keys(&config, Some(&old.keys));
        self.0.settings.send_replace(Arc::new(Settings { config, keys }));
        self.0.public.0.send_replace(public);
        self.0.admin.0.send_replace(admin);
        self.0.http.0.send_replace(http);
        Ok(())
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

fn keys(config: &Config, old: Option<&Keys>) -> Keys {
    match config.allow_anonymous {
        true => Keys::anonymous(&config.aliases, old),
        false => Keys::new(&config.keys, &config.aliases, old),
    }
}

fn http_address(config: &Config) -> Option<SocketAddr> {
    config.acme.as_ref()?.http_listen
}

async fn bind(address: SocketAddr) -> Result<Arc<TcpListener>, BindError> {
    socket::bind(address, "(listen)").await.map(Arc::new)
}
