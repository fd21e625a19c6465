package main

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	attestation "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"google.golang.org/protobuf/encoding/protojson"
)

// names of files that are not artefacts.
const (
	sumsFile       = "SHA256SUMS"
	signatureFile  = "SHA256SUMS.sig"
	provenanceFile = "provenance.intoto.jsonl"
)

// verifier checks a directory.
type verifier struct {
	dir, version string
	key          *ecdsa.PublicKey
	sums         map[string]string // by name
	errs         []error
}

func (v *verifier) readKey(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%s: is not PEM", path)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var ok bool
	if v.key, ok = parsed.(*ecdsa.PublicKey); !ok {
		return fmt.Errorf("%s: is not an ECDSA key", path)
	}
	return nil
}

// signed reports whether a signature in base64 is of a message.
func (v *verifier) signed(message []byte, signature string) bool {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(signature))
	digest := sha256.Sum256(message)
	return err == nil && ecdsa.VerifyASN1(v.key, digest[:], raw)
}

// step runs a check of a file. It prints the result of a successful check, and keeps the error of a failed one.
func (v *verifier) step(name string, check func() (string, error)) {
	detail, err := check()
	if err != nil {
		v.errs = append(v.errs, fmt.Errorf("%s: %w", name, err))
		return
	}
	fmt.Printf("ok  %s: %s\n", name, detail)
}

// verify checks everything, and prints a line for each file.
func (v *verifier) verify() error {
	v.step(sumsFile, v.checkSums)
	if len(v.errs) > 0 {
		return errors.Join(v.errs...) // the rest would read, and run, files of somebody else
	}
	v.step(provenanceFile, v.checkProvenance)
	counts := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(v.sums)) {
		kind := kindOf(name)
		counts[kind]++
		check, ok := map[string]func(string) (string, error){
			"archive": v.checkArchive, "deb": v.checkPackage, "rpm": v.checkPackage, "image": v.checkImage, "chart": v.checkChart,
		}[kind]
		if ok {
			v.step(name, func() (string, error) { return check(name) })
		}
	}
	v.step("set", func() (string, error) {
		for kind, want := range map[string]int{"archive": 40, "deb": 6, "rpm": 6, "image": 7, "chart": 2} {
			if counts[kind] != want {
				return "", fmt.Errorf("has %d artefacts of kind %s, want %d", counts[kind], kind, want)
			}
		}
		return fmt.Sprintf("%d files", len(v.sums)), nil
	})
	return errors.Join(v.errs...)
}

func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_image.tar"):
		return "image"
	case strings.HasSuffix(name, ".tar.gz"), strings.HasSuffix(name, ".zip"):
		return "archive"
	case strings.HasSuffix(name, ".deb"):
		return "deb"
	case strings.HasSuffix(name, ".rpm"):
		return "rpm"
	case strings.HasSuffix(name, "_oci.tar"), strings.HasSuffix(name, ".tgz"):
		return "chart"
	}
	return ""
}

// checkSums checks the signature of the list, and that the directory has exactly the files of the list.
func (v *verifier) checkSums() (string, error) {
	list, err := os.ReadFile(filepath.Join(v.dir, sumsFile))
	if err != nil {
		return "", err
	}
	signature, err := os.ReadFile(filepath.Join(v.dir, signatureFile))
	if err != nil {
		return "", err
	}
	if !v.signed(list, string(signature)) {
		return "", errors.New("the signature is not of this key")
	}
	for line := range strings.Lines(string(list)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || name != filepath.Base(name) {
			return "", fmt.Errorf("line %q is not a checksum and a name", line)
		}
		v.sums[name] = sum
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return "", err
	}
	var errs []error
	found := 0
	for _, e := range entries {
		if e.Name() == sumsFile || e.Name() == signatureFile {
			continue
		}
		content, err := os.ReadFile(filepath.Join(v.dir, e.Name()))
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(content)
		if want, ok := v.sums[e.Name()]; !ok {
			errs = append(errs, fmt.Errorf("%s is not in the list", e.Name()))
		} else if hex.EncodeToString(sum[:]) != want {
			errs = append(errs, fmt.Errorf("%s has the SHA-256 sum %x, want %s", e.Name(), sum, want))
		} else {
			found++
		}
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	if found != len(v.sums) {
		return "", fmt.Errorf("the list has %d files, the directory %d of them", len(v.sums), found)
	}
	return fmt.Sprintf("signed, %d files", found), nil
}

// checkProvenance checks the signature of the statement, its form, and that it is about each artefact.
func (v *verifier) checkProvenance() (string, error) {
	text, err := os.ReadFile(filepath.Join(v.dir, provenanceFile))
	if err != nil {
		return "", err
	}
	var envelope dsse.Envelope
	if err := json.Unmarshal(text, &envelope); err != nil {
		return "", err
	}
	payload, err := envelope.DecodeB64Payload()
	if err != nil {
		return "", err
	}
	if len(envelope.Signatures) != 1 || !v.signed(dsse.PAE(envelope.PayloadType, payload), envelope.Signatures[0].Sig) {
		return "", errors.New("the signature is not of this key")
	}
	var s attestation.Statement
	if err := protojson.Unmarshal(payload, &s); err != nil {
		return "", err
	}
	if err := s.Validate(); err != nil {
		return "", err
	}
	if s.PredicateType != "https://slsa.dev/provenance/v1" {
		return "", fmt.Errorf("its predicate is %q", s.PredicateType)
	}
	subjects := make(map[string]string)
	for _, subject := range s.Subject {
		subjects[subject.Name] = subject.Digest["sha256"]
	}
	for name, sum := range v.sums {
		if name != provenanceFile && subjects[name] != sum {
			return "", fmt.Errorf("subject %s has the digest %q, want %s", name, subjects[name], sum)
		}
	}
	var made struct {
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   struct{ Version string }
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := json.Unmarshal(payload, &made); err != nil {
		return "", err
	}
	definition := made.Predicate.BuildDefinition
	if got := definition.ExternalParameters.Version; got != v.version {
		return "", fmt.Errorf("it is about version %s, want %s", got, v.version)
	}
	if len(definition.ResolvedDependencies) == 0 {
		return "", errors.New("it names no commit")
	}
	return fmt.Sprintf("signed, %d subjects, commit %s", len(subjects), definition.ResolvedDependencies[0].Digest["gitCommit"]), nil
}
