package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// seal writes the provenance and the checksums, and signs both.
func (r *release) seal(key string) error {
	sums, err := sumsOf(r.out)
	if err != nil {
		return err
	}
	type digest map[string]string
	type descriptor struct {
		Name   string `json:"name,omitempty"`
		URI    string `json:"uri,omitempty"`
		Digest digest `json:"digest,omitempty"`
	}
	var subjects []descriptor
	for _, s := range sums {
		subjects = append(subjects, descriptor{Name: s.name, Digest: digest{"sha256": s.sum}})
	}
	modules, err := os.ReadFile(filepath.Join(r.source, "go.sum"))
	if err != nil {
		return err
	}
	ofModules := sha256.Sum256(modules)
	statement, err := json.MarshalIndent(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          repository + "/blob/" + r.version + "/RELEASING.md",
				"externalParameters": map[string]any{"command": "make release", "version": r.version, "image": r.image},
				"internalParameters": map[string]any{"go": r.goVersion},
				"resolvedDependencies": []descriptor{
					{URI: "git+" + repository + "@refs/tags/" + r.version, Digest: digest{"gitCommit": r.commit}},
					{Name: "go.sum", Digest: digest{"sha256": hex.EncodeToString(ofModules[:])}},
				},
			},
			// The time and the machine are left out: the statement is the same for everybody who makes the release.
			"runDetails": map[string]any{"builder": map[string]any{"id": repository + "/blob/" + r.version + "/Makefile"}},
		},
	}, "", " ")
	if err != nil {
		return err
	}
	envelope := dsse.Envelope{PayloadType: "application/vnd.in-toto+json", Payload: base64.StdEncoding.EncodeToString(statement), Signatures: []dsse.Signature{}}
	sign := func([]byte) ([]byte, error) { return nil, nil }
	if key != "" {
		if sign, err = signer(key); err != nil {
			return err
		}
		signature, err := sign(dsse.PAE(envelope.PayloadType, statement))
		if err != nil {
			return err
		}
		envelope.Signatures = append(envelope.Signatures, dsse.Signature{Sig: base64.StdEncoding.EncodeToString(signature)})
	}
	text, err := json.Marshal(envelope)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, "provenance.intoto.jsonl"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	if sums, err = sumsOf(r.out); err != nil {
		return err
	}
	var list strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&list, "%s  %s\n", s.sum, s.name)
	}
	if err := os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(list.String()), 0o644); err != nil || key == "" {
		return err
	}
	signature, err := sign([]byte(list.String()))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS.sig"), []byte(base64.StdEncoding.EncodeToString(signature)), 0o644)
}

type sum struct{ name, sum string }

// sumsOf returns the checksums of a directory's files, by name.
func sumsOf(dir string) (sums []sum, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		s := sha256.Sum256(content)
		sums = append(sums, sum{e.Name(), hex.EncodeToString(s[:])})
	}
	return sums, nil
}

// signer returns how to sign with the key in a file. A signature is the same each time (RFC 6979).
func signer(path string) (func([]byte) ([]byte, error), error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s: is not PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; make a key with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: is not an ECDSA key", path)
	}
	return func(message []byte) ([]byte, error) {
		digest := sha256.Sum256(message)
		return key.Sign(nil, digest[:], crypto.SHA256)
	}, nil
}
