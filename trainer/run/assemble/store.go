package assemble

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Store returns the store's options, and reads the secrets that the configuration names.
func Store(cfg *config.Config) (store.Options, error) {
	c := cfg.Store
	o := store.Options{
		Run: cfg.Run.Name, URL: c.URL, Username: c.Username, CAFile: cfg.Resolve(c.TLS.CA), CertFile: cfg.Resolve(c.TLS.Cert),
		KeyFile: cfg.Resolve(c.TLS.Key), ServerName: c.TLS.ServerName, AllowInsecure: c.AllowInsecure != "",
		AllowVolatile: c.AllowVolatile != "", Lease: c.Lease, Timeout: c.Timeout, MaxDeliveries: c.MaxDeliveries,
	}
	var err error
	o.Password, err = cfg.Password()
	return o, err
}
