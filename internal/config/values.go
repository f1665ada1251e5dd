package config

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// value is a flag that writes straight into the Config.
type value struct {
	kind string
	get  func() string
	set  func(string) error
}

func (v value) String() string     { return v.get() }
func (v value) Set(s string) error { return v.set(s) }
func (v value) Type() string       { return v.kind }

func text(at func(*Config) *string) func(*Config) pflag.Value {
	return func(c *Config) pflag.Value {
		p := at(c)
		return value{"string", func() string { return *p }, func(s string) error { *p = s; return nil }}
	}
}

func list(at func(*Config) *[]string) func(*Config) pflag.Value {
	return func(c *Config) pflag.Value {
		p := at(c)
		return value{"list", func() string { return strings.Join(*p, ",") }, func(s string) error {
			*p = nil
			for _, item := range strings.Split(s, ",") {
				if item = strings.TrimSpace(item); item != "" {
					*p = append(*p, item)
				}
			}
			return nil
		}}
	}
}

func number(at func(*Config) *int) func(*Config) pflag.Value {
	return func(c *Config) pflag.Value {
		p := at(c)
		return value{"int", func() string { return strconv.Itoa(*p) }, func(s string) error {
			n, err := strconv.Atoi(s)
			if err != nil {
				return errors.New("must be a whole number")
			}
			*p = n
			return nil
		}}
	}
}

func fraction(at func(*Config) *float64) func(*Config) pflag.Value {
	return func(c *Config) pflag.Value {
		p := at(c)
		return value{"number", func() string { return strconv.FormatFloat(*p, 'g', -1, 64) }, func(s string) error {
			n, err := strconv.ParseFloat(s, 64)
			if err != nil || n <= 0 {
				return errors.New("must be a number above 0")
			}
			*p = n
			return nil
		}}
	}
}
