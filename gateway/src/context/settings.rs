//! What the gateway was told, as it is now. One writer, the reload, and snapshots for everybody
//! else: a request keeps the settings that it began with.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::access::keys::Keys;
use crate::config::Config;

/// A checked configuration, and what is kept beside it.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// The keys of the public API.
    pub keys: Keys,
}

/// The settings, and the listeners that they ask for. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Live(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: watch::Sender<Arc<Settings>>,
    public: Socket,
    admin: Socket,
}

/// A listener that another may take the place of. Snapshots of the settings do not hold it: it
/// closes when its place is taken, and not with the last request of its time.
#[derive(Debug)]
pub struct Socket(watch::Sender<Option<Arc<TcpListener>>>);

impl Live {
    /// The first settings.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub async fn new(config: Config) -> Result<Self, String> {
        let public = bind(config.listen).await?;
        let admin = match &config.admin {
            Some(admin) => Some(bind(admin.listen).await?),
            None => None,
        };
        let keys = keys(&config, None);
        Ok(Self(Arc::new(Shared {
            settings: watch::Sender::new(Arc::new(Settings { config, keys })),
            public: Socket(watch::Sender::new(Some(public))),
            admin: Socket(watch::Sender::new(admin)),
        })))
    }

    /// The settings now.
    pub fn now(&self) -> Arc<Settings> {
        self.0.settings.borrow().clone()
    }

    /// The settings, now and whenever others take their place.
    pub fn changes(&self) -> watch::Receiver<Arc<Settings>> {
        self.0.settings.subscribe()
    }

    /// Where clients come in.
    pub fn public(&self) -> &Socket {
        &self.0.public
    }

    /// Where operators come in.
    pub fn admin(&self) -> &Socket {
        &self.0.admin
    }

    /// Other settings take the place of these, listeners included. To be called by one task.
    ///
    /// # Errors
    /// An address cannot be listened on; then everything stays as it is.
    pub async fn replace(&self, config: Config) -> Result<(), String> {
        let old = self.now();
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
        let keys = keys(&config, Some(&old.keys));
        self.0.settings.send_replace(Arc::new(Settings { config, keys }));
        self.0.public.0.send_replace(public);
        self.0.admin.0.send_replace(admin);
        Ok(())
    }
}

impl Socket {
    /// The listener now and whenever another takes its place.
    pub fn changes(&self) -> watch::Receiver<Option<Arc<TcpListener>>> {
        self.0.subscribe()
    }

    /// The listener now, where there is one.
    pub fn listener(&self) -> Option<Arc<TcpListener>> {
        self.0.borrow().clone()
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener()?.local_addr().ok()
    }

    /// Nobody comes in any more.
    pub fn close(&self) {
        self.0.send_replace(None);
    }
}

fn keys(config: &Config, old: Option<&Keys>) -> Keys {
    match config.allow_anonymous {
        true => Keys::open(&config.aliases, old),
        false => Keys::new(&config.keys, &config.aliases, old),
    }
}

async fn bind(address: SocketAddr) -> Result<Arc<TcpListener>, String> {
    let why = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another program uses this port; choose another (listen)".to_string()
        }
        _ => e.to_string(),
    };
    let bound = TcpListener::bind(address).await;
    bound.map(Arc::new).map_err(|e| format!("cannot listen on {address}: {}", why(e)))
}
