package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"managoat/db"
	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/handlers/web"
	"managoat/internal/peer"
)

// edge puts the table of routes over the services.
func edge(b *base, s *services, proxies []*net.IPNet) http.Handler {
	routes := handlers.APIRoutes(handlers.JSON{
		Health:        api.Health{Checks: map[string]func(context.Context) error{"database": b.db.Ping}},
		Auth:          api.Auth{Service: s.identity, Quotas: s.quotas, Accounts: s.accounts},
		Quotas:        api.Quotas{Service: s.quotas},
		Audit:         api.Audit{Service: s.audit},
		Catalog:       api.Catalog{Providers: b.cfg.SandboxProviders, Default: b.cfg.SandboxProvider},
		Environments:  api.Environments{Service: s.environments},
		Vaults:        api.Vaults{Service: s.vaults},
		Agents:        api.Agents{Service: s.agents},
		Credentials:   api.Credentials{Service: s.inference},
		Workspaces:    api.Workspaces{Service: s.workspaces, Files: s.files, Ledger: s.ledger},
		Conversations: api.Conversations{Service: s.conversations, Reader: s.reader, Ledger: s.ledger},
		Account:       api.Account{Reader: s.reader},
	})
	console := web.New(web.Options{
		Identity: s.identity, Environments: s.environments, Vaults: s.vaults, Agents: s.agents, Inference: s.inference, Workspaces: s.workspaces,
		Conversations: s.conversations, Files: s.files, Ledger: s.ledger, Audit: s.audit, Reader: s.reader, Accounts: s.accounts,
		SessionCookie: handlers.SessionCookie, Providers: b.cfg.SandboxProviders, DefaultProvider: b.cfg.SandboxProvider, Version: version,
	})
	e, _ := handlers.New(handlers.Config{DB: b.db, Auth: s.identity, Routes: append(routes, handlers.PageRoutes(console)...), Log: slog.Default(),
		Peer: &handlers.Host{Key: peer.NewKey(b.master), Machines: s.machines, Look: func(ref db.Ref) {
			s.operations.Wake(ref)
			s.conversations.Look(ref)
		}},
		TrustedProxies: proxies, HTTPS: strings.HasPrefix(b.cfg.URL, "https:"), ErrorPage: console.ErrorPage, Version: version})
	return e
}
