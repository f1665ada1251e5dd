package server

import "os"

func (s *Server) sudoFor(c *command) (*os.File, error) { return nil, nil }
