package idemmail

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ProviderKey turns a namespace and a key into 64 hexadecimal digits that are
// the same in every process: a form that every provider's rules for its own
// idempotency key, or for a tag, allow. Different pairs give different values
// as long as the namespace has no ':', as Options.Namespace demands.
func ProviderKey(namespace, key string) string {
	sum := keySum(namespace, key)
	return hex.EncodeToString(sum[:])
}

// keySum hashes a key as the store knows it.
func keySum(namespace, key string) [sha256.Size]byte {
	return sha256.Sum256([]byte(namespace + ":" + key))
}

// checkKey says what is wrong with a key that is not empty. The key is not in
// the error: a SendError names it.
func checkKey(key string) error {
	if len(key) > maxKeyBytes {
		return fmt.Errorf("key has %d bytes, %d are allowed: shorten it, or hash the long part", len(key), maxKeyBytes)
	}
	if !utf8.ValidString(key) {
		return errors.New("key is not valid UTF-8")
	}
	if i := strings.IndexFunc(key, unicode.IsControl); i >= 0 {
		return fmt.Errorf("key has a control character at byte %d", i)
	}
	return nil
}

func checkNamespace(namespace string) error {
	switch {
	case namespace == "":
		return errors.New("must not be empty")
	case len(namespace) > maxNamespaceBytes:
		return fmt.Errorf("has %d bytes, %d are allowed", len(namespace), maxNamespaceBytes)
	case strings.Contains(namespace, ":"):
		return errors.New("must not have a ':', which ends the namespace in a stored key")
	case !utf8.ValidString(namespace):
		return errors.New("is not valid UTF-8")
	case strings.IndexFunc(namespace, unicode.IsControl) >= 0:
		return errors.New("has a control character")
	}
	return nil
}
