// Package tlsfiles keeps a TLS configuration that is made of files, and follows them when they are replaced.
package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/client/regularfile"
)

// maxFile is how many bytes a file may have: some 5,000 authorities.
const maxFile = 8 << 20

// Config is a configuration made of files. Its methods may be called concurrently.
type Config struct {
	files   []string
	compose func(contents [][]byte) (*tls.Config, error)
	log     *slog.Logger

	mu     sync.Mutex // guards all below
	read   [][]byte
	config *tls.Config
	failed string    // the last error that was logged
	tried  time.Time // when the files were read last, or could not be
	warned time.Time // when the end of a connection was logged last
	broken int       // connections that have ended since
}

// New reads the files for the first time, and composes a configuration of their contents, in the same order. An empty
// name means no file, with no contents. Errors name the file, and the errors of compose must do so. log gets failures
// to read the files again.
func New(log *slog.Logger, compose func(contents [][]byte) (*tls.Config, error), files ...string) (*Config, error) {
	c := &Config{files: files, compose: compose, log: log}
	if err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// Current returns the configuration for the next handshake. It must not be modified. Files that can no longer be used
// are logged, and their previous contents count until they are fixed.
func (c *Config) Current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current()
}

// recent is like Current, with files that were read up to readPause ago.
func (c *Config) recent() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.tried) < readPause {
		return c.config
	}
	return c.current()
}

// ended logs that a connection is closed, once a minute.
func (c *Config) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken++
	if now := time.Now(); now.Sub(c.warned) >= time.Minute {
		c.log.Warn("closing connections whose certificates are no longer valid", "error", err, "connectionsSinceLastWarning", c.broken)
		c.warned, c.broken = now, 0
	}
}

// current reads the files. The caller holds mu.
func (c *Config) current() *tls.Config {
	c.tried = time.Now()
	err := c.reload()
	switch {
	case err == nil:
		c.failed = ""
	case err.Error() != c.failed:
		c.failed = err.Error()
		c.log.Error("cannot reload certificates; keeping the last valid ones", "error", err)
	}
	return c.config
}

// reload reads the files, which are small compared with the cost of a handshake, and applies them if they have changed.
func (c *Config) reload() error {
	read := make([][]byte, len(c.files))
	for i, f := range c.files {
		if f == "" {
			continue
		}
		var err error
		if read[i], err = regularfile.ReadFile(f, maxFile); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
	}
	if c.config != nil && slices.EqualFunc(read, c.read, bytes.Equal) {
		return nil
	}
	config, err := c.compose(read)
	if err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	c.read, c.config = read, config
	return nil
}

// Authorities returns the certificates in the contents of a file.
func Authorities(file string, contents []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents) {
		return nil, fmt.Errorf("authorities: %s has no certificate in PEM", file)
	}
	return pool, nil
}
