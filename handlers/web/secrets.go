package web

import (
	"net/url"
	"time"

	"managoat/internal/secret/store"
	"managoat/views"
)

const secretsHint = "Each becomes a variable of every process in the machine. A value is replaced, never shown."

// secretsPanel lists the secrets of what lies at a URL.
func secretsPanel(base string, secrets []store.Secret) views.SecretsPanel {
	p := views.SecretsPanel{URL: base + "/secrets", Hint: secretsHint}
	for _, s := range secrets {
		p.Rows = append(p.Rows, views.SecretRow{Key: s.Key, ChangedAt: s.UpdatedAt, ExpiresAt: when(s.ExpiresAt),
			DeleteURL: base + "/secrets/" + url.PathEscape(s.Key) + "/delete"})
	}
	return p
}

// day reads the date of an expiry: the end of that day.
func day(text string) (*time.Time, bool) {
	if text == "" {
		return nil, true
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return nil, false
	}
	t = t.Add(24*time.Hour - time.Second)
	return &t, true
}
