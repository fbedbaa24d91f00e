package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// A storeURL says where a store is.
type storeURL struct {
	scheme  string
	rest    string   // what stands behind "scheme:", or "scheme://" but for SQLite, without the query
	query   string   // as it was written, without what take took
	secrets []string // what must not be printed
}

// parseStoreURL takes a URL apart. Errors do not show it. Unlike [url.Parse] it
// allows many hosts, as MongoDB and PostgreSQL have them.
func parseStoreURL(raw string) (*storeURL, error) {
	if raw == "" {
		return nil, errors.New("no store: give --store, or set " + storeVariable)
	}
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return nil, errors.New("store URL: it must begin with a scheme and a colon, such as redis://")
	}
	u := &storeURL{scheme: scheme}
	if scheme != "sqlite" {
		if rest, ok = strings.CutPrefix(rest, "//"); !ok {
			return nil, errors.New("store URL: the colon of the scheme must be followed by //")
		}
	}
	u.rest, u.query, _ = strings.Cut(rest, "?")
	if scheme == "sqlite" {
		return u, nil
	}
	u.secrets = append(u.secrets, raw)
	if err := u.findPassword(); err != nil {
		return nil, err
	}
	for _, pair := range strings.Split(u.query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if strings.Contains(strings.ToLower(name), "password") {
			u.hide(value)
		}
	}
	return u, nil
}

// findPassword notes the password in front of the host. A URL whose parsers
// would take a part of it for something else, and show that, is refused.
func (u *storeURL) findPassword() error {
	authority := u.rest
	if i := strings.IndexAny(authority, "/#"); i >= 0 {
		authority = authority[:i]
	}
	at := strings.LastIndex(authority, "@")
	if strings.Contains(u.rest[at+1:], "@") || strings.Contains(u.query, "@") {
		return errors.New("store URL: there is a '/', '?' or '#' before an '@': in user names and passwords write %2F, %3F, %23, and elsewhere %40 for '@'")
	}
	if at < 0 {
		return nil
	}
	userinfo := authority[:at]
	if _, err := url.PathUnescape(userinfo); err != nil {
		return errors.New("store URL: in user names and passwords write %25 for '%'")
	}
	if _, password, ok := strings.Cut(userinfo, ":"); ok {
		u.hide(password)
	}
	return nil
}

// hide notes a secret, as it stands in the URL and as it is meant.
func (u *storeURL) hide(secret string) {
	for _, unescape := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
		if meant, err := unescape(secret); err == nil && meant != "" && !slices.Contains(u.secrets, meant) {
			u.secrets = append(u.secrets, meant)
		}
	}
	if secret != "" && !slices.Contains(u.secrets, secret) {
		u.secrets = append(u.secrets, secret)
	}
}

// take removes an option from the query and answers its value; the drivers
// know nothing of those that are this program's.
func (u *storeURL) take(name string) (string, error) {
	var value string
	var left []string
	for _, pair := range strings.Split(u.query, "&") {
		n, v, _ := strings.Cut(pair, "=")
		if n != name {
			left = append(left, pair)
			continue
		}
		var err error
		if value, err = url.QueryUnescape(v); err != nil || value == "" {
			return "", fmt.Errorf("the value of %s is empty, or has a '%%' that is not written %%25", name)
		}
	}
	u.query = strings.Join(left, "&")
	return value, nil
}

// as writes the URL with another scheme, for a driver's parser.
func (u *storeURL) as(scheme string) string {
	text := scheme + "://" + u.rest
	if u.query != "" {
		text += "?" + u.query
	}
	u.secrets = append(u.secrets, text)
	return text
}
