import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.salesforce.SalesforceComponent;
import org.apache.camel.component.salesforce.SalesforceLoginConfig;
import org.apache.camel.impl.DefaultCamelContext;

// Runs the unmodified camel-salesforce against an emulator: creates or changes the PushTopic
// CamelTopic for a query, subscribes to it, says so, and prints the first event that it receives as
// a JSON line. The arguments are the emulator's HTTP URL and the query.
public final class CamelStreaming {
  public static void main(String[] arguments) throws Exception {
    SalesforceLoginConfig login = new SalesforceLoginConfig();
    login.setLoginUrl(arguments[0]);
    login.setClientId("emulator");
    login.setClientSecret("emulator-secret");
    login.setUserName("user@example.com");
    login.setPassword("emulator-password");
    SalesforceComponent salesforce = new SalesforceComponent();
    salesforce.setLoginConfig(login);
    CountDownLatch left = new CountDownLatch(1);
    try (DefaultCamelContext context = new DefaultCamelContext()) {
      context.addComponent("salesforce", salesforce);
      context.addRoutes(new RouteBuilder() {
        @Override public void configure() {
          from("salesforce:subscribe:CamelTopic?rawPayload=true&updateTopic=true"
              + "&notifyForFields=ALL&notifyForOperationCreate=true&sObjectQuery=" + arguments[1])
              .process(exchange -> {
                System.out.println(exchange.getMessage().getBody(String.class));
                left.countDown();
              });
        }
      });
      context.start();
      System.out.println("{\"subscribed\": true}");
      if (!left.await(60, TimeUnit.SECONDS)) {
        throw new IllegalStateException("no event arrived within 60 s");
      }
    }
  }
}
