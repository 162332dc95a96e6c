import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.cometd.bayeux.Promise;
import org.cometd.bayeux.server.BayeuxServer;
import org.cometd.bayeux.server.ServerChannel;
import org.cometd.bayeux.server.ServerMessage;
import org.cometd.bayeux.server.ServerSession;
import org.cometd.server.http.jakarta.CometDServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * The CometD project's Java server, with a small replay extension.
 *
 * Reads one command per line: "publish CHANNEL COUNT", or "goodbye", which disconnects all sessions
 * with /meta/disconnect. Prints its port, then a JSON list per command: the published replay ids.
 */
public class Judge {
  private static final Map<String, List<Map<String, Object>>> LOG = new HashMap<>();
  private static long last = 100;

  public static void main(String[] arguments) throws Exception {
    Server jetty = new Server();
    ServerConnector connector = new ServerConnector(jetty);
    connector.setHost("127.0.0.1");
    jetty.addConnector(connector);
    ServletContextHandler context = new ServletContextHandler("/");
    CometDServlet servlet = new CometDServlet();
    ServletHolder holder = new ServletHolder(servlet);
    holder.setInitParameter("timeout", "5000");
    holder.setInitParameter("maxInterval", "3000");
    holder.setAsyncSupported(true);
    holder.setInitOrder(1);
    context.addServlet(holder, "/cometd/*");
    jetty.setHandler(context);
    jetty.start();
    BayeuxServer bayeux = servlet.getBayeuxServer();
    bayeux.addExtension(new Replay());
    bayeux.addListener(new Subscribed());
    System.out.println(connector.getLocalPort());
    BufferedReader reader = new BufferedReader(new InputStreamReader(System.in));
    for (String line = reader.readLine(); line != null; line = reader.readLine()) {
      String[] words = line.split(" ");
      if (words[0].equals("publish")) {
        System.out.println(publish(bayeux, words[1], Integer.parseInt(words[2])));
      } else {
        for (ServerSession session : bayeux.getSessions()) {
          session.disconnect();
        }
        System.out.println("[]");
      }
    }
    jetty.stop();
  }

  private static List<Long> publish(BayeuxServer bayeux, String name, int count) {
    List<Long> ids = new ArrayList<>();
    synchronized (LOG) {
      for (int i = 0; i < count; i++) {
        last += 1 + i % 3;
        Map<String, Object> event = new HashMap<>();
        event.put("createdDate", "2026-01-01T00:00:00.000Z");
        event.put("replayId", last);
        Map<String, Object> data = new HashMap<>();
        data.put("event", event);
        data.put("payload", "event " + last);
        LOG.computeIfAbsent(name, key -> new ArrayList<>()).add(data);
        ServerChannel channel = bayeux.createChannelIfAbsent(name).getReference();
        channel.publish(null, data, Promise.noop());
        ids.add(last);
      }
    }
    return ids;
  }

  private static class Replay implements BayeuxServer.Extension {
    @Override
    public boolean sendMeta(ServerSession session, ServerMessage.Mutable message) {
      if ("/meta/handshake".equals(message.getChannel()) && message.isSuccessful()) {
        message.getExt(true).put("replay", true);
      }
      return true;
    }
  }

  private static class Subscribed implements BayeuxServer.SubscriptionListener {
    @Override
    public void subscribed(ServerSession session, ServerChannel channel, ServerMessage message) {
      if (message == null || message.getExt() == null) {
        return;
      }
      Object positions = message.getExt().get("replay");
      if (!(positions instanceof Map)) {
        return;
      }
      Object position = ((Map<?, ?>) positions).get(channel.getId());
      if (!(position instanceof Number) || ((Number) position).longValue() == -1) {
        return;
      }
      synchronized (LOG) {
        for (Map<String, Object> data : LOG.getOrDefault(channel.getId(), List.of())) {
          Object id = ((Map<?, ?>) data.get("event")).get("replayId");
          if (((Long) id) > ((Number) position).longValue()) {
            session.deliver(null, channel.getId(), data, Promise.noop());
          }
        }
      }
    }
  }
}
